"""An encoder: what sentence-transformers loads, split where our loop needs it, before and after the forward.

`tokenize` runs ahead on another thread, `batch` pads just the rows of one batch, `forward` is the model.
Pooling, normalisation and prompts are the model's own.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.canary import CANARY, row_cosines
from ultimate_embedder.models.described import (
    DOCUMENT_PROMPT_NAMES,
    QUERY_PROMPT_NAMES,
    ends_normalized,
    loaded_dim,
    own_prompt,
    token_limit,
)
from ultimate_embedder.models.imports import import_quickly
from ultimate_embedder.models.loaded import LoadedModel, TokenBatch, TokenizedTexts
from ultimate_embedder.models.packed import lay_end_to_end, packed, unpack, use_packed_attention, use_plain_attention
from ultimate_embedder.models.peak import PeakPredictor
from ultimate_embedder.models.quiet import quiet_loading
from ultimate_embedder.types import ResolvedModel

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

REACH_CHARACTERS = 40  # a token has four or so; white space, which some tokenizers drop, has any number
SPARE_TOKENS = 64
PACKED_AGREEMENT = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.99}
_learning = threading.Lock()  # workers on the CPU share an encoder


class Encoder(LoadedModel):
    """A loaded model that makes vectors."""

    output = "sentence_embedding"

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        document_prompt: str,
        query_prompt: str,
        max_tokens: int,
    ) -> None:
        super().__init__(name, model)
        self.document_prompt = document_prompt
        self.query_prompt = query_prompt
        self.max_tokens = max_tokens
        self.dim = loaded_dim(model)
        self.unit_norm = ends_normalized(model)
        if hasattr(model.tokenizer, "model_max_length"):  # else the model knows no limit
            model.max_seq_length = max_tokens
        self._constants, self._input_names = self._learn_features()
        self._first_position: int | None = None  # of packed rows; None: not known to work
        self._packing_learned = False
        self._peaks = PeakPredictor(model, self.pretend_features)  # replicas share it

    def peak_bytes(self, rows: int, length: int) -> int:
        """What a forward of `rows` x `length` tokens will have allocated at its peak, weights not counted."""
        return self._peaks.peak_bytes(rows, length)

    @property
    def tokenizes(self) -> bool:
        """Whether we tokenise ourselves, and know lengths; else only the model can."""
        return bool(self._input_names)

    def can_pack(self) -> bool:
        """Whether a batch can be run without padding; found out by trying, once, where the weights are."""
        import torch

        if self.wrapper is not None:
            return False
        with _learning:
            if not self._packing_learned:
                try:
                    self._first_position, self._packing_learned = self._learn_packing(), True
                except torch.OutOfMemoryError:
                    return False  # for now: another time there may be room to try
        return self._first_position is not None

    @property
    def transformer(self) -> Any:
        """The layers below pooling, where the model has them as transformers has; else None."""
        return getattr(self.model[0], "auto_model", None)

    @property
    def tokenizer_kind(self) -> str:
        """`token-sorted`, or `model` where only the model can tokenise."""
        return "token-sorted" if self.tokenizes else "model"

    def tokenizer_fingerprint(self) -> str | None:
        """Equal for models that give every text the same token ids; None where that cannot be known."""
        backend = getattr(self.model.tokenizer, "backend_tokenizer", None)
        if not self.tokenizes or backend is None:
            return None
        sides = (self.model.tokenizer.truncation_side, self.max_tokens, self.document_prompt)
        return hashlib.sha256(f"{sides} {_without_state(backend)}".encode()).hexdigest()[:16]

    def tokenize(self, texts: Sequence[str]) -> TokenizedTexts:
        """Turn document texts into token ids, cut at the token limit."""
        if not self.tokenizes:
            lengths = np.array([min(len(text) // 3 + 2, self.max_tokens) for text in texts])
            return TokenizedTexts(list(texts), lengths, np.zeros(len(texts), bool))
        rows, tokens_over = self._head_token_ids([self.document_prompt + text for text in texts])
        lengths = np.array([len(row) for row in rows])
        return TokenizedTexts(rows, lengths, np.array(tokens_over) > 0)

    def batch(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> TokenBatch:
        """Pad the given rows to the longest of them, or lay them end to end."""
        tokens = int(texts.lengths[rows].sum())
        padded = int(texts.lengths[rows].max()) * len(rows)
        chosen = [texts.rows[row] for row in rows]
        if packed and self._first_position is not None:
            return self._pack(chosen, tokens)
        if self.tokenizes:
            return TokenBatch(self._pad(chosen), tokens, padded)
        return TokenBatch(self._model_features(chosen), tokens, padded)

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """Run the model on one batch; gives float32 vectors, one a row, where the weights are."""
        import torch

        if batch.groups is None:
            return super().forward(batch)
        device = self.device
        with torch.inference_mode():
            inputs = {name: value.to(device) for name, value in batch.features.items()}
            with packed(batch.groups):
                hidden = self.transformer(**inputs).last_hidden_state
            tokens, mask = unpack(hidden, batch.groups)
            features = {**self._constants, "token_embeddings": tokens, "attention_mask": mask}
            for module in list(self.model)[1:]:
                features = module(features)
            vectors: torch.Tensor = features[self.output]
            return vectors.float()

    def encode_query(self, text: str) -> np.ndarray:
        """Vector of a query, with the model's query prompt, as the model gives it."""
        return np.asarray(
            self.model.encode([text], prompt=self.query_prompt or None, show_progress_bar=False)[0], np.float32
        )

    def pretend_features(self, rows: int, length: int) -> dict[str, Any]:
        """Features of a padded batch of that size, of no particular tokens."""
        import torch

        names = self._input_names or ("input_ids", "attention_mask")
        return {**{name: torch.ones((rows, length), dtype=torch.long) for name in names}, **self._constants}

    def _head_token_ids(self, texts: list[str]) -> tuple[list[np.ndarray], list[int]]:
        """As `_token_ids`, but of a text far beyond the limit only as much is tokenised as can matter.

        Tokens depend on what is near them. So if the head of a text has more tokens than the limit, with some to
        spare, its first ones are those of the whole text; if it has not, the whole text is tokenised after all.
        """
        reach = self.max_tokens * REACH_CHARACTERS
        if self.model.tokenizer.truncation_side != "right" or all(len(text) <= reach for text in texts):
            return self._token_ids(texts)
        rows, tokens_over = self._token_ids([text[:reach] for text in texts])
        for number, text in enumerate(texts):
            if len(text) > reach and tokens_over[number] < SPARE_TOKENS:
                (rows[number],), (tokens_over[number],) = self._token_ids([text])
        return rows, tokens_over

    def _token_ids(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[int]]:
        """Token ids cut at the limit, and how many tokens of each text were cut off."""
        encoded = self.model.tokenizer(
            list(texts),
            truncation=True,
            max_length=self.max_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        rows = [np.array(ids, np.int32) for ids in encoded["input_ids"]]
        if encoded.is_fast:
            return rows, [sum(map(len, encoding.overflowing)) for encoding in encoded.encodings]
        whole = self.model.tokenizer(list(texts), verbose=False)["input_ids"]
        return rows, [len(ids) - len(row) for ids, row in zip(whole, rows, strict=True)]

    def _pad(self, rows: list[np.ndarray]) -> dict[str, Any]:
        import torch

        tokenizer = self.model.tokenizer
        longest = max(len(row) for row in rows)
        ids = np.full((len(rows), longest), tokenizer.pad_token_id, np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for number, row in enumerate(rows):
            part = slice(longest - len(row), longest) if tokenizer.padding_side == "left" else slice(len(row))
            ids[number, part] = row
            mask[number, part] = 1
        tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        features = {name: torch.from_numpy(tensors[name]) for name in self._input_names}
        return {**features, **self._constants}

    def _pack(self, rows: list[np.ndarray], tokens: int) -> TokenBatch:
        import torch

        features, groups = lay_end_to_end(rows, self._first_position or 0)
        if "token_type_ids" in self._input_names:
            features["token_type_ids"] = torch.zeros_like(features["input_ids"])
        return TokenBatch(features, tokens, tokens, groups)

    def _model_features(self, texts: Sequence[str]) -> dict[str, Any]:
        """Features as sentence-transformers makes them: the reference, padded and slower."""
        return dict(self.model.preprocess(list(texts), prompt=self.document_prompt or None))

    def _learn_features(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """See what features the model wants, and whether ours equal them; else leave tokenising to the model."""
        import torch

        reference = self._model_features(CANARY)
        names = tuple(name for name, value in reference.items() if isinstance(value, torch.Tensor))
        constants = {name: value for name, value in reference.items() if name not in names}
        if not {"input_ids"} <= set(names) <= {"input_ids", "attention_mask", "token_type_ids"}:
            return {}, ()
        self._constants, self._input_names = constants, names
        rows, _ = self._token_ids([self.document_prompt + text for text in CANARY])
        ours = self._pad(rows)
        same = all(torch.equal(ours[name], reference[name]) for name in names)
        return (constants, names) if same else ({}, ())

    def _learn_packing(self) -> int | None:
        """See whether rows laid end to end give the same vectors, and from what number positions count; else None."""
        import torch

        transformer = self.transformer
        if not self._input_names or transformer is None or not use_packed_attention(transformer):
            return None
        texts = self.tokenize(CANARY)
        rows = np.argsort(-texts.lengths, kind="stable")
        padding = getattr(transformer.config, "pad_token_id", None) or 0
        try:
            reference = self.forward(self.batch(texts, rows)).cpu().numpy()
            for first in (0, padding + 1):  # RoBERTa counts positions from there
                self._first_position = first
                ours = self.forward(self.batch(texts, rows, packed=True)).cpu().numpy()
                if row_cosines(ours, reference).min() > PACKED_AGREEMENT[self.dtype]:
                    return first
        except torch.OutOfMemoryError:
            self._first_position = None
            raise
        except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError):
            pass  # this model does more with its inputs than we know: it is padded, as always
        use_plain_attention(transformer)
        return None


def load_encoder(
    model: ResolvedModel,
    dtype: str,
    device: str,
    max_tokens: int | None = None,
    trusted: Sequence[str] = (),
    *,
    token_cap: int | None = None,
) -> Encoder:
    """Load a model from its resolved path; no network, and its own code only where it is trusted."""
    import_quickly("sentence_transformers")
    import torch
    from safetensors import SafetensorError
    from sentence_transformers import SentenceTransformer

    try:
        with quiet_loading():
            loaded = SentenceTransformer(
                str(model.path),
                device=device,
                local_files_only=True,
                trust_remote_code=model.spec is not None and model.spec.key in trusted,
                model_kwargs={"dtype": getattr(torch, dtype)},
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"{model.name} cannot be loaded from {model.path}: {error}") from error
    loaded.eval()
    spec = model.spec
    return Encoder(
        loaded,
        model.name,
        document_prompt=own_prompt(loaded, spec.document_prompt if spec else None, DOCUMENT_PROMPT_NAMES),
        query_prompt=own_prompt(loaded, spec.query_prompt if spec else None, QUERY_PROMPT_NAMES),
        max_tokens=token_limit(loaded, model.name, max_tokens, token_cap),
    )


def _without_state(tokenizer: Any) -> str:
    """A tokenizer as JSON, without the truncation and padding that calls leave in it."""
    described = json.loads(tokenizer.to_str())
    return json.dumps({**described, "truncation": None, "padding": None}, sort_keys=True)
