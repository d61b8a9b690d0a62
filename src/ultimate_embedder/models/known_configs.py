"""What the configs of registered models say, for a plan where their files are not on this machine: an estimate.

Sizes are those of `config.json` in each model's repository. The tokenizer is a stand-in: pieces of words of up to six
letters, and each punctuation mark. Its counts were within a quarter of those of two real ones, on prose and on Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.files import write_json
from ultimate_embedder.types import ModelSpec

STAND_IN = "stand-in for its tokenizer"
PIECES = r"[\u2e80-\u9fff\uac00-\ud7af]|[^\W_]{1,6}|[^\w\s]|_|\n"  # Chinese, Japanese and Korean: each character
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the padding id is 1, as in XLM-R: positions depend on it
NORMALIZE = "sentence_transformers.models.Normalize"


@dataclass(frozen=True)
class KnownConfig:
    """The sizes of a transformer, and how its token vectors become one."""

    kind: str
    layers: int
    heads: int
    hidden: int
    inner: int
    vocabulary: int
    positions: int
    pooling: str
    key_heads: int | None = None
    head_dim: int | None = None
    stored_in: str = "float32"
    """The number format of the weights in its repository."""

    @property
    def is_decoder(self) -> bool:
        """Whether each token attends only to those before it."""
        return self.key_heads is not None

    def as_config(self) -> dict[str, Any]:
        """As `config.json` has it."""
        grouped = {"num_key_value_heads": self.key_heads, "tie_word_embeddings": True} if self.is_decoder else {}
        return {
            "model_type": self.kind,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "pad_token_id": SPECIAL.index("<pad>"),
            **({"type_vocab_size": 1} if self.kind == "xlm-roberta" else {}),
            **grouped,
            **({"head_dim": self.head_dim} if self.head_dim else {}),
        }


KNOWN_CONFIGS: dict[str, KnownConfig] = {
    "all-minilm-l6-v2": KnownConfig("bert", 6, 12, 384, 1536, 30522, 512, "mean"),
    "bge-m3": KnownConfig("xlm-roberta", 24, 16, 1024, 4096, 250002, 8194, "cls"),
    # of Qwen2.5-Coder-1.5B, which it is made of
    "jina-code-embeddings-1.5b": KnownConfig(
        "qwen2", 28, 12, 1536, 8960, 151936, 32768, "lasttoken", key_heads=2, stored_in="bfloat16"
    ),
    "qwen3-embedding-0.6b": KnownConfig(
        "qwen3", 28, 16, 1024, 3072, 151669, 32768, "lasttoken", key_heads=8, head_dim=128, stored_in="bfloat16"
    ),
}


def write_stand_in(spec: ModelSpec, known: KnownConfig, folder: Path) -> Path:
    """Write config and stand-in for the tokenizer of a model below `folder`, as its repository would have them."""
    model = folder / spec.key
    write_json(model / "config.json", known.as_config())
    write_json(model / "sentence_bert_config.json", {"max_seq_length": spec.max_tokens})
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": NORMALIZE},
    ]
    write_json(model / "modules.json", modules)
    pooling = {"word_embedding_dimension": known.hidden, "pooling_mode": known.pooling}
    write_json(model / "1_Pooling" / "config.json", pooling)
    (model / "2_Normalize").mkdir()
    _write_tokenizer(model, known, spec.max_tokens)
    return model


def _write_tokenizer(folder: Path, known: KnownConfig, max_tokens: int) -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    vocabulary = {token: number for number, token in enumerate(SPECIAL)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="removed", invert=True)
    single = "$A </s>" if known.is_decoder else "<s> $A </s>"
    ends = [(token, vocabulary[token]) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "padding_side": "left" if known.is_decoder else "right",
        "model_input_names": ["input_ids", "attention_mask", *(["token_type_ids"] if known.kind == "bert" else [])],
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL, strict=True)),
    }
    write_json(folder / "tokenizer_config.json", settings)
