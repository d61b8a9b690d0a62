"""A model in memory that can be placed on devices and run on batches."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ultimate_embedder.models.attention import Groups, use_attention
from ultimate_embedder.models.layers import NotApplicableError, repeated_layers
from ultimate_embedder.models.runtimes import Runtime, TorchRuntime
from ultimate_embedder.types import ModelDevice, VectorKind

if TYPE_CHECKING:
    import torch

Self = TypeVar("Self", bound="LoadedModel")


PAD_MULTIPLE = 8  # else the attention kernel that takes a mask copies it, in every layer
ALIGNED_FROM = 256  # tokens: below, more padding would cost more than the copies do


def padded_length(lengths: np.ndarray, *, on_card: bool, most: int | None = None) -> int:
    """Tokens to which rows of these lengths are padded, `most` at the most; those of one length need no mask."""
    longest = int(lengths.max())
    if not on_card or longest == lengths.min():
        return longest
    aligned = aligned_length(longest)
    return aligned if most is None else max(longest, min(aligned, most))


def aligned_length(length: int) -> int:
    """The length to which a card's rows are padded, where they have to be."""
    return length if length < ALIGNED_FROM else -(-length // PAD_MULTIPLE) * PAD_MULTIPLE


@dataclass(frozen=True)
class SegmentRows:
    """Which rows belong to which text, where texts that are too long are cut into segments."""

    text_of_row: np.ndarray
    weights: np.ndarray
    """Tokens of each row without prompt and special tokens."""
    text_lengths: np.ndarray
    """Tokens of each text, as far as it would be kept if it was truncated."""

    @functools.cached_property
    def rows_per_text(self) -> np.ndarray:
        """How many rows each text has."""
        return np.bincount(self.text_of_row)


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as token ids without padding. `rows` are id arrays, or the texts if the model tokenises.

    A row is a text, or a segment of one if there are `segments`.
    """

    rows: list[Any]
    lengths: np.ndarray
    """Of each row."""
    over: np.ndarray
    """Tokens of each text beyond the token limit."""
    segments: SegmentRows | None = None

    @property
    def overlong(self) -> np.ndarray:
        """Which texts have more tokens than the limit."""
        return np.asarray(self.over > 0)

    @property
    def text_tokens(self) -> np.ndarray:
        """Tokens of each text, also those beyond the limit."""
        kept = self.lengths if self.segments is None else self.segments.text_lengths
        return np.asarray(kept + self.over)


@dataclass(frozen=True)
class TokenBatch:
    """The features of one batch, on the host."""

    features: Mapping[str, Any]
    tokens: int
    padded_tokens: int
    groups: Groups | None = None
    """Set if rows are concatenated instead of padded."""


class LoadedModel(ABC):
    """A model, its weights, and one forward."""

    output: str
    """Name of the model output to return."""
    unit_norm = False
    """Whether every row of the output must be normalised."""
    kind: VectorKind = "dense"
    """Whether most numbers of the output are 0 and only the others are kept."""
    fused = False
    """Whether our own layers compute it, on the CPU."""
    most_rows: int | None = None
    """The most rows of a batch that the host can take, whatever the device has room for."""

    def __init__(self, name: str, model: Any) -> None:
        use_attention(model)
        _without_cache(model)
        self.name = name
        self.model = model
        self.runtime: Runtime = TorchRuntime(str(next(model.parameters()).dtype).removeprefix("torch."))
        self.wrapper: torch.nn.Module | None = None  # splits a batch over several devices

    @abstractmethod
    def batch(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> TokenBatch:
        """The input of a forward of these rows; `packed` requests one without padding, if possible."""

    @abstractmethod
    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """Run the model on one batch; returns float32 rows, one per text, on the device of the weights."""

    def can_pack(self, device: ModelDevice) -> bool:
        """Whether a batch can be run without padding, on the device of the weights."""
        return False

    def can_pack_rows(self, texts: TokenizedTexts, rows: np.ndarray, device: ModelDevice) -> bool:
        """Whether a batch of these rows can."""
        return False

    @property
    def layers(self) -> int:
        """How many repeated layers it has; 0 if it has none."""
        return len(self._layers())

    @property
    def layer_weights(self) -> int:
        """Weights of these layers: each is used once for every token."""
        return sum(weight.numel() for layer in self._layers() for weight in layer.parameters())

    def _layers(self) -> list[torch.nn.Module]:
        try:
            return repeated_layers(self.model)
        except NotApplicableError:
            return []

    @property
    def dtype(self) -> str:
        """The number format that it computes in."""
        return self.runtime.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are; those of another runtime are on the host."""
        if not self.runtime.weights_move:
            import torch

            return torch.device("cpu")
        place: torch.device = next(self.model.parameters()).device
        return place

    @functools.cached_property
    def weight_bytes(self) -> int:
        """Size of the weights."""
        return sum(tensor.nbytes for tensor in [*self.model.parameters(), *self.model.buffers()])

    def replica(self: Self) -> Self:
        """A copy with its own weights, on the same device; call it while the weights are on the host.

        If the runtime has its own weights, all workers share them, and this returns the same model.
        """
        if not self.runtime.weights_move:
            return self
        twin = copy.copy(self)
        twin.model = copy.deepcopy(self.model)
        return twin

    def split_over(self: Self, devices: Sequence[torch.device]) -> Self:
        """The same model with batches split over several devices; the weights must be on the first."""
        import torch

        twin = copy.copy(self)
        twin.wrapper = torch.nn.DataParallel(_only(self.model, self.output), device_ids=list(devices))
        return twin

    def for_queries(self: Self) -> Self:
        """The same model and weights, with the prompt for queries before each text, where there is one."""
        return self

    def alone(self: Self) -> Self:
        """The same model on the device of its weights only."""
        twin = copy.copy(self)
        twin.wrapper = None
        return twin

    def count_hooks(self) -> int:
        """The number of forward hooks in the model."""
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self.model.modules())

    def tensors_off_host(self) -> list[tuple[str, str]]:
        """Weights and buffers that are not on the host: name and device."""
        if not self.runtime.weights_move:
            return []
        tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        return [(name, str(tensor.device)) for name, tensor in tensors if tensor.device.type != "cpu"]


def _without_cache(model: torch.nn.Module) -> None:
    """Keep no keys and values of earlier layers: nothing is generated, and they take as much as the hidden states."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False


def _only(model: torch.nn.Module, output: str) -> torch.nn.Module:
    """The model with one output: gathering the token vectors would fill the device."""
    import torch

    class Only(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, features: dict[str, Any]) -> Any:
            return self.model(features)[output]

    return Only()
