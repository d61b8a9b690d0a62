"""An encoder without weights: it tokenises, and predicts memory and cost of forwards, from config files alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import ModelError
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models.encoder import Encoder, as_encoder, model_options
from ultimate_embedder.models.imports import import_quickly
from ultimate_embedder.models.quiet import quiet_loading
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.types import ResolvedModel

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_loading = OrderedLock("loading without weights", Rank.PACKING)
_wanted: ContextVar[bool] = ContextVar("without weights", default=False)  # other threads may load a model meanwhile


def load_without_weights(
    model: ResolvedModel,
    dtype: str,
    max_tokens: int | None = None,
    trusted: Sequence[str] = (),
    *,
    token_cap: int | None = None,
    stand_in: bool = False,
) -> Encoder:
    """A model as `load_encoder` gives it, with weights that have shapes and no bytes; reads config and tokenizer.

    A `stand_in` is of this program, and needs no trust.
    """
    is_trusted = not stand_in and require_trust(model.spec, model.path, trusted)
    import_quickly("sentence_transformers")
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    try:
        with quiet_loading(), _no_weights():
            loaded = SentenceTransformer(
                str(model.path),
                device="meta",
                local_files_only=True,
                trust_remote_code=is_trusted,
                model_kwargs=model_options(getattr(torch, dtype), is_trusted, model.spec),
            )
    except Exception as error:
        raise ModelError(f"{model.name} cannot be described from {model.path}: {error}") from error
    if stand_in:
        _use_tokenizer(loaded, transformers.PreTrainedTokenizerFast.from_pretrained(str(model.path)))
    return as_encoder(loaded, model, max_tokens, token_cap)


def _use_tokenizer(model: SentenceTransformer, tokenizer: Any) -> None:
    """Let a model use this tokenizer; for some kinds of models transformers has loaded another, whatever is there."""
    try:
        model.tokenizer = tokenizer
    except AttributeError:  # newer versions have it in a processor
        untyped: Any = model[0]
        untyped.processor = tokenizer


@contextlib.contextmanager
def _no_weights() -> Iterator[None]:
    """Let transformers and sentence-transformers build modules of configs, in this thread, and read no weights."""
    import transformers
    from sentence_transformers.sentence_transformer.modules import Pooling

    readers: tuple[tuple[type, str, Callable[..., Any]], ...] = (
        (transformers.PreTrainedModel, "from_pretrained", _from_config),
        (_owner(Pooling, "load_torch_weights"), "load_torch_weights", _as_it_is),
    )
    token = _wanted.set(True)
    with _loading:
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in readers]
        try:
            for (owner, name, instead), (_, _, original) in zip(readers, before, strict=True):
                setattr(owner, name, classmethod(_unless_wanted(original.__func__, instead)))
            yield
        finally:
            for owner, name, original in before:
                setattr(owner, name, original)
            _wanted.reset(token)


def _unless_wanted(original: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    def call(cls: type, *arguments: Any, **options: Any) -> Any:
        return (instead if _wanted.get() else original)(cls, *arguments, **options)

    return call


def _from_config(cls: Any, *_: Any, config: Any = None, dtype: Any = None, **options: Any) -> Any:
    """A model of transformers with weights on the meta device."""
    import torch

    with torch.device("meta"):
        return cls._from_config(config, dtype=dtype)


def _as_it_is(cls: type, *_: Any, model: Any = None, **options: Any) -> Any:
    """A module of sentence-transformers, with weights as they were made; a module that has nothing else is refused."""
    if model is None:
        raise ValueError(f"the shape of {cls.__name__} is known from its weights only")
    return model


def _owner(cls: type, name: str) -> type:
    return next(each for each in cls.__mro__ if name in each.__dict__)
