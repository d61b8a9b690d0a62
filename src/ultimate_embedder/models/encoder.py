"""An encoder: a sentence-transformers model, split into tokenising, batching and the forward.

`tokenize` runs ahead on another thread, `batch` pads the rows of one batch, `forward` runs the model.
Pooling, normalisation and prompts come from the model's files; the runtime computes the transformer.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.errors import ModelError
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models.attention import known_padding
from ultimate_embedder.models.canary import CANARY
from ultimate_embedder.models.cost import ForwardCost
from ultimate_embedder.models.fused import (
    Checked,
    FusedSettings,
    Kernels,
    NotFusibleError,
    compare,
    find_fastest_kernels,
    load_fused,
    read_checked,
    remember,
    settings_of,
)
from ultimate_embedder.models.imports import import_quickly
from ultimate_embedder.models.loaded import LoadedModel, TokenBatch, TokenizedTexts, padded_length
from ultimate_embedder.models.metadata import (
    DOCUMENT_PROMPT_NAMES,
    QUERY_PROMPT_NAMES,
    ends_normalized,
    loaded_dim,
    own_prompt,
    token_limit,
)
from ultimate_embedder.models.packed import PackingCheck, PackingTrial, lay_end_to_end, padding_ids, try_packing
from ultimate_embedder.models.peak import PeakPredictor
from ultimate_embedder.models.quiet import quiet_loading
from ultimate_embedder.models.runtimes import Runtime
from ultimate_embedder.models.tokenize import Tokenizer, preprocess
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.types import Capability, ModelDevice, ModelSpec, ResolvedModel

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

    from ultimate_embedder.models.fused.model import SentenceModel

_trying = OrderedLock("packing trial", Rank.PACKING)  # CPU workers share an encoder


class Encoder(LoadedModel):
    """A loaded embedding model."""

    output = "sentence_embedding"

    def __init__(
        self,
        model: SentenceModel,
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
        self.fused = bool(getattr(model, "fused", False))
        self.unit_norm = ends_normalized(model)
        if hasattr(model.tokenizer, "model_max_length"):  # else the model has no limit
            model.max_seq_length = max_tokens
        self.tokenizer = Tokenizer(model, document_prompt, max_tokens)
        self._packing: PackingTrial | None = None  # not tested yet
        self._documents: Encoder | None = None  # set in the twin for queries
        self._peaks = PeakPredictor(model, self.tokenizer.example_features)  # replicas share it

    def with_runtime(self, runtime: Runtime) -> Encoder:
        """The same encoder, with the transformer in another runtime."""
        twin = copy.copy(self)
        twin.runtime = runtime
        return twin

    def for_queries(self) -> Encoder:
        """The same model and weights, with the query prompt before each text."""
        if self._documents is not None or self.query_prompt == self.document_prompt:
            return self
        twin = copy.copy(self)
        twin.document_prompt = self.query_prompt
        twin.tokenizer = self._query_tokenizer
        twin._documents = self
        return twin

    @functools.cached_property
    def _query_tokenizer(self) -> Tokenizer:
        return Tokenizer(self.model, self.query_prompt, self.max_tokens)

    def peak_bytes(
        self, rows: int, length: int, capability: Capability | None, *, has_padding: bool | None = None
    ) -> int:
        """Predicted peak memory of a forward of `rows` x `length` tokens, on a card, without weights."""
        return self._peaks.peak_bytes(rows, length, capability, has_padding=has_padding)

    def forward_cost(self, rows: int, length: int, capability: Capability | None) -> ForwardCost:
        """The kernels of a forward of `rows` x `length` tokens on a card, counted on tensors without bytes."""
        return self._peaks.forward_cost(rows, length, capability, self.layers)

    @property
    def tokenizes(self) -> bool:
        """Whether texts are tokenised here, so that lengths are known; else the model tokenises them."""
        return bool(self.tokenizer.input_names)

    @property
    def tokenizer_kind(self) -> str:
        """`token-sorted`, or `model` if the model tokenises."""
        return "token-sorted" if self.tokenizes else "model"

    @property
    def vocabulary(self) -> int:
        """Every token id of the model is below this."""
        config = getattr(self.transformer, "config", None)
        return int(getattr(config, "vocab_size", None) or self.tokenizer.size)

    def tokenizer_fingerprint(self) -> str | None:
        """Equal for models with the same token ids for every text; None if unknown."""
        return self.tokenizer.fingerprint()

    def tokenize(self, texts: Sequence[str]) -> TokenizedTexts:
        """Turn document texts into token ids, truncated at the token limit."""
        return self.tokenizer.tokenize(texts)

    @property
    def transformer(self) -> Any:
        """The transformers model below pooling; None if there is none."""
        return getattr(self.model[0], "auto_model", None)

    def can_pack(self, device: ModelDevice) -> bool:
        """Whether a batch can be run without padding; tested once, on the device with the weights."""
        if self.wrapper is not None or not self.runtime.packs:
            return False
        with _trying:
            tested = self._documents or self  # once, whatever the prompt
            if tested._packing is None:
                tested._packing = tested._try_packing(device)
            self._packing = tested._packing
        return self._packing is not None and self._packing.first_position is not None

    def can_pack_rows(self, texts: TokenizedTexts, rows: np.ndarray, device: ModelDevice) -> bool:
        """Whether these rows can be run without padding: not if they spell out a padding token that matters."""
        if not self.can_pack(device) or self._packing is None:
            return False
        return self._packing.allows([texts.rows[row] for row in rows])

    def batch(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> TokenBatch:
        """Pad the given rows to the longest of them, or concatenate them (`packed`)."""
        if packed and self._packing is not None and self._packing.first_position is not None:
            return self._packed_batch(texts, rows, self._packing.first_position)
        chosen, lengths = [texts.rows[row] for row in rows], texts.lengths[rows]
        length = padded_length(lengths, on_card=self.device.type != "cpu", most=self.max_tokens)
        if self.tokenizes:
            features = self.tokenizer.pad(chosen, length)
        else:
            features = preprocess(self.model, chosen, self.document_prompt)
        return TokenBatch(features, tokens=int(lengths.sum()), padded_tokens=length * len(rows))

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """Run the model on one batch; returns float32 vectors, one per row, on the device of the weights."""
        import torch

        with torch.inference_mode():
            if self.wrapper is not None:  # it sends each device its rows from the CPU
                split: torch.Tensor = self.wrapper(dict(batch.features))
                return split.float()
            has_padding = batch.padded_tokens > batch.tokens if self.tokenizes else None
            with known_padding(has_padding):
                computed = self.runtime.run(self.model, batch.features, batch.groups)
            features = {**self.tokenizer.constants, **computed}
            for module in list(self.model)[1:]:
                features = module(features)
            vectors: torch.Tensor = features[self.output]
            return vectors.float()

    def _packed_batch(self, texts: TokenizedTexts, rows: np.ndarray, first_position: int) -> TokenBatch:
        import torch

        features, groups = lay_end_to_end([texts.rows[row] for row in rows], first_position)
        if "token_type_ids" in self.tokenizer.input_names:
            features["token_type_ids"] = torch.zeros_like(features["input_ids"])
        tokens = int(texts.lengths[rows].sum())
        return TokenBatch(features, tokens, tokens, groups)

    def _try_packing(self, device: ModelDevice) -> PackingTrial | None:
        if not self.tokenizes:
            return PackingTrial(None)
        longest_first = sorted(self.tokenize(CANARY).rows, key=len, reverse=True)

        def vectors(rows: Sequence[np.ndarray], first_position: int | None = None) -> np.ndarray:
            texts = TokenizedTexts(list(rows), np.array([len(row) for row in rows]), np.zeros(len(rows), int))
            every = np.arange(len(rows))
            packed = None if first_position is None else self._packed_batch(texts, every, first_position)
            return np.asarray(self.forward(packed or self.batch(texts, every)).cpu().numpy())

        return try_packing(
            self.transformer,
            longest_first,
            self.tokenizer.padding_ids | padding_ids(self.transformer),
            PackingCheck(padded=vectors, packed=vectors, dtype=self.dtype),
            is_out_of_memory=device.is_out_of_memory,
        )


def model_options(dtype: Any, is_trusted: bool, spec: ModelSpec | None = None) -> dict[str, Any]:
    """The arguments with which transformers loads weights: safetensors only, unless the model is trusted.

    The weights of a registered model that has nothing else may be a pickle, for torch's restricted loader.
    """
    if is_trusted:
        return {"dtype": dtype}
    only = {} if spec is not None and spec.pickled_weights else {"use_safetensors": True}
    return {"dtype": dtype, "weights_only": True, **only}


def load_encoder(
    model: ResolvedModel,
    dtype: str,
    device: str,
    max_tokens: int | None = None,
    trusted: Sequence[str] = (),
    *,
    token_cap: int | None = None,
    may_fuse: bool = False,
) -> Encoder:
    """Load a model from its resolved path; without network, and with remote code or pickles only if it is trusted.

    `may_fuse` allows a fused model, for the CPU, where it gives the same vectors.
    """
    is_trusted = require_trust(model.spec, model.path, trusted)
    may_fuse = may_fuse and dtype == "float32" and device == "cpu"
    checked = read_checked(model.digest) if may_fuse else None
    if checked is not None and checked.settings is not None:
        return as_encoder(load_fused(model.path, checked.settings, checked.kernels), model, max_tokens, token_cap)
    import_quickly("sentence_transformers")
    import torch
    from sentence_transformers import SentenceTransformer

    try:
        with quiet_loading():
            loaded = SentenceTransformer(
                str(model.path),
                device=device,
                local_files_only=True,
                trust_remote_code=is_trusted,
                model_kwargs=model_options(getattr(torch, dtype), is_trusted, model.spec),
            )
    except Exception as error:
        raise ModelError(f"{model.name} cannot be loaded from {model.path}: {error}") from error
    if may_fuse and checked is None:
        return fused_if_equal(loaded, model, max_tokens, token_cap)
    return as_encoder(loaded, model, max_tokens, token_cap)


def fused_if_equal(
    loaded: SentenceTransformer, model: ResolvedModel, max_tokens: int | None, token_cap: int | None
) -> Encoder:
    """The fused model if it gives the same vectors as the loaded one; what was found is remembered."""
    try:
        settings = settings_of(loaded, model.path)  # before the encoder sets the token limit of this run
    except NotFusibleError as error:
        remember(model.digest, Checked(None, str(error)))
        return as_encoder(loaded, model, max_tokens, token_cap)
    reference = as_encoder(loaded, model, max_tokens, token_cap)
    try:
        fused, kernels = _fused_as(reference, model, settings, max_tokens, token_cap)
    except NotFusibleError as error:
        remember(model.digest, Checked(None, str(error)))
        return reference
    remember(model.digest, Checked(settings, None, kernels))
    return fused


def _fused_as(
    reference: Encoder, model: ResolvedModel, settings: FusedSettings, max_tokens: int | None, token_cap: int | None
) -> tuple[Encoder, Kernels]:
    """The fused model with the fastest kernels, else with torch's; raises `NotFusibleError` if both differ."""
    kernels = find_fastest_kernels()
    fused = as_encoder(load_fused(model.path, settings, kernels), model, max_tokens, token_cap)
    try:
        compare(fused, reference)
    except NotFusibleError:
        if kernels == Kernels():
            raise
        kernels = Kernels()
        fused = as_encoder(load_fused(model.path, settings, kernels), model, max_tokens, token_cap)
        compare(fused, reference)
    return fused, kernels


def as_encoder(loaded: SentenceModel, model: ResolvedModel, max_tokens: int | None, token_cap: int | None) -> Encoder:
    """An encoder of a loaded model, with prompts and token limit from its files, the registry and the options."""
    loaded.eval()
    spec = model.spec
    return Encoder(
        loaded,
        model.name,
        document_prompt=own_prompt(loaded, spec.document_prompt if spec else None, DOCUMENT_PROMPT_NAMES),
        query_prompt=own_prompt(loaded, spec.query_prompt if spec else None, QUERY_PROMPT_NAMES),
        max_tokens=token_limit(loaded, model.name, max_tokens, token_cap),
    )
