"""Tiny models of the architectures that people use, made with a fixed seed, in sentence-transformers' layout."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

Architecture = Literal["bert", "xlm-roberta", "mpnet", "qwen2", "qwen3"]
ARCHITECTURES: tuple[Architecture, ...] = ("bert", "xlm-roberta", "mpnet", "qwen2", "qwen3")
POOLING: dict[Architecture, Any] = {
    "bert": "mean",
    "xlm-roberta": "cls",
    "mpnet": "mean",
    "qwen2": "lasttoken",
    "qwen3": "lasttoken",
}
# <s> first and <pad> second, as in RoBERTa: position ids depend on the padding id
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@functools.cache
def tiny_model(
    architecture: Architecture, *, hidden: int = 64, layers: int = 3, max_tokens: int = 512, prompts: bool = False
) -> Path:
    """The folder of a small random model: real code of its architecture, byte-level tokens, a fixed seed."""
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{architecture}-")) / f"tiny-{architecture}"
    base = folder.with_name("base")
    torch.manual_seed(7)
    config = _config(architecture, hidden, layers, max_tokens)
    auto_model: Any = transformers.AutoModel
    auto_model.from_config(config).eval().save_pretrained(base)
    _tokenizer(architecture, max_tokens).save_pretrained(base)
    model = SentenceTransformer(
        modules=[
            Transformer(str(base), max_seq_length=max_tokens),
            Pooling(hidden, POOLING[architecture]),
            Normalize(),
        ],
        prompts={"query": "find: ", "document": "passage: "} if prompts else None,
        device="cpu",
    )
    model.save(str(folder))
    return folder


def _config(architecture: Architecture, hidden: int, layers: int, max_tokens: int) -> Any:
    sizes = {
        "vocab_size": 256 + len(SPECIAL),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": hidden * 4,
        "max_position_embeddings": max_tokens + 2,
        "pad_token_id": SPECIAL.index("<pad>"),
        "initializer_range": 0.2,  # large enough that different texts get clearly different vectors
    }
    if architecture in ("qwen2", "qwen3"):
        sizes |= {"num_key_value_heads": 2, "eos_token_id": SPECIAL.index("</s>"), "head_dim": hidden // 4}
        sizes |= {"tie_word_embeddings": True}
    return transformers.AutoConfig.for_model(architecture, **sizes)


def _tokenizer(architecture: Architecture, max_tokens: int) -> Any:
    vocabulary = {token: number for number, token in enumerate(SPECIAL)}
    for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[byte] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    decoder_only = architecture in ("qwen2", "qwen3")
    ends = [("</s>", vocabulary["</s>"])] + ([] if decoder_only else [("<s>", vocabulary["<s>"])])
    single = "$A </s>" if decoder_only else "<s> $A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if architecture == "bert" else [])
    fast_tokenizer: Any = transformers.PreTrainedTokenizerFast
    return fast_tokenizer(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        padding_side="left" if decoder_only else "right",
        model_input_names=names,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )
