"""Tiny models of the architectures that people use, made with a fixed seed, in sentence-transformers' layout."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.sparse_encoder.modules import Router, SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

Architecture = Literal["bert", "xlm-roberta", "mpnet", "qwen2", "qwen3", "modernbert"]
ARCHITECTURES: tuple[Architecture, ...] = ("bert", "xlm-roberta", "mpnet", "qwen2", "qwen3")
POOLING: dict[Architecture, Any] = {
    "bert": "mean",
    "xlm-roberta": "cls",
    "mpnet": "mean",
    "qwen2": "lasttoken",
    "qwen3": "lasttoken",
    "modernbert": "cls",
}
# <s> first and <pad> second, as in RoBERTa: position ids depend on the padding id
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

OWN_CONFIGURATION = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own-reranker"
"""
OWN_RERANKER = """
import torch
from transformers import PreTrainedModel

from .configuration_own import OwnConfig


class OwnReranker(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.letters = torch.nn.Embedding(256, 16)
        self.post_init()

    def rerank(self, query, documents, top_n=None):
        wanted = self.mean_letter(query)
        scores = [float(self.mean_letter(document) @ wanted) for document in documents]
        best_first = sorted(range(len(documents)), key=lambda index: -scores[index])
        return [
            {"document": documents[index], "relevance_score": scores[index], "index": index}
            for index in best_first[:top_n]
        ]

    def mean_letter(self, text):
        return self.letters(torch.tensor(list(text.encode()), device=self.device)).float().mean(0)
"""


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


@functools.cache
def overflowing_model(token: str = "~", *, hidden: int = 64, layers: int = 3, max_tokens: int = 512) -> Path:
    """The folder of a model of Qwen2's architecture whose numbers overflow in fp16 for every text with `token`.

    `</s>` is in every text. The hidden state of the token is the largest number of fp16, and the first layer adds to
    it: infinite in fp16, so that all that attends to it is no number; a number like others in fp32.
    """
    source = tiny_model("qwen2", hidden=hidden, layers=layers, max_tokens=max_tokens)
    folder = Path(tempfile.mkdtemp(prefix="tiny-overflow-")) / "tiny-overflow"
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    number = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"][token]
    (embeddings,) = [name for name in weights if name.endswith("embed_tokens.weight")]
    (added,) = [name for name in weights if name.endswith("layers.0.mlp.down_proj.weight")]
    weights[embeddings][number] = torch.finfo(torch.float16).max
    weights[added] *= 16  # more than half of the step between the largest numbers
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@functools.cache
def tiny_splade(
    architecture: Literal["bert", "distilbert"] = "bert",
    *,
    hidden: int = 64,
    layers: int = 3,
    max_tokens: int = 512,
    vocabulary: int = 256 + len(SPECIAL),
    pooling: Literal["max", "sum"] = "max",
    activation: Literal["relu", "log1p_relu"] = "relu",
    prompts: bool = False,
) -> Path:
    """The folder of a small random SPLADE: a masked language model whose logits are pooled over the tokens.

    More `vocabulary` than the tokenizer has makes the last layer as large as it is in real ones.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-splade-{architecture}-")) / "tiny-splade"
    base = folder.with_name("base")
    torch.manual_seed(7)
    config = _config("bert", hidden, layers, max_tokens)
    if architecture == "distilbert":
        sizes = {"dim": hidden, "hidden_dim": hidden * 4, "n_layers": layers, "n_heads": 4, "initializer_range": 0.2}
        sizes |= {"max_position_embeddings": max_tokens, "pad_token_id": SPECIAL.index("<pad>")}
        config = transformers.AutoConfig.for_model("distilbert", **sizes)
    config.vocab_size = vocabulary
    auto_model: Any = transformers.AutoModelForMaskedLM
    model = auto_model.from_config(config).eval()
    with torch.no_grad():  # most logits are below 0, as those of trained ones are
        model.get_output_embeddings().bias -= 1.5
    model.save_pretrained(base)
    _tokenizer("bert" if architecture == "bert" else "mpnet", max_tokens).save_pretrained(base)
    encoder = SparseEncoder(
        modules=[
            Transformer(str(base), transformer_task="fill-mask", max_seq_length=max_tokens),
            SpladePooling(pooling_strategy=pooling, activation_function=activation),
        ],
        prompts={"query": "find: ", "document": "passage: "} if prompts else None,
        device="cpu",
    )
    encoder.save(str(folder))
    return folder


@functools.cache
def tiny_inference_free() -> Path:
    """The folder of a sparse encoder that looks the weights of a query's tokens up, and computes those of documents."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-inference-free-")) / "tiny-inference-free"
    documents: Any = SparseEncoder(str(tiny_splade()), device="cpu")
    weights = torch.rand(256 + len(SPECIAL), generator=torch.Generator().manual_seed(7))
    queries = SparseStaticEmbedding(documents.tokenizer, weight=weights, frozen=True)
    router = Router.for_query_document(query_modules=[queries], document_modules=list(documents))
    SparseEncoder(modules=[router], device="cpu").save(str(folder))
    return folder


@functools.cache
def tiny_cross_encoder(*, hidden: int = 64, layers: int = 2, max_tokens: int = 512) -> Path:
    """The folder of a small random reranker of XLM-R's architecture: reads a query and a text, gives one number."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-cross-encoder-")) / "tiny-cross-encoder"
    torch.manual_seed(7)
    config = _config("xlm-roberta", hidden, layers, max_tokens)
    config.num_labels = 1
    auto_model: Any = transformers.AutoModelForSequenceClassification
    auto_model.from_config(config).eval().save_pretrained(folder)
    _tokenizer("xlm-roberta", max_tokens).save_pretrained(folder)
    return folder


@functools.cache
def tiny_list_reranker() -> Path:
    """The folder of a reranker that only its own code can load, with the `rerank` of jina-reranker-v3.

    It compares the mean letter of a text with that of the query.
    """
    folder = Path(tempfile.mkdtemp(prefix="tiny-list-reranker-")) / "tiny-list-reranker"
    folder.mkdir()
    own = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnReranker"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own-reranker", "auto_map": own}))
    (folder / "configuration_own.py").write_text(OWN_CONFIGURATION)
    (folder / "modeling_own.py").write_text(OWN_RERANKER)
    letters = torch.randn(256, 16, generator=torch.Generator().manual_seed(7))
    save_file({"letters.weight": letters}, folder / "model.safetensors", metadata={"format": "pt"})
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
    if architecture == "modernbert":
        # each token sees 210 on both sides: all of a short text, and not of a long one
        sizes |= {"local_attention": 420, "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
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
    pair = f"{single} $B:1 </s>:1"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)
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
