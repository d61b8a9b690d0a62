"""Sparse encoders: models of sentence-transformers whose vectors have a value for each word that matters (SPLADE)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.canary import CANARY
from ultimate_embedder.models.config_files import read_modules, read_object
from ultimate_embedder.models.encoder import Encoder, model_options
from ultimate_embedder.models.imports import import_quickly
from ultimate_embedder.models.loaded import TokenBatch
from ultimate_embedder.models.metadata import DOCUMENT_PROMPT_NAMES, QUERY_PROMPT_NAMES, own_prompt, token_limit
from ultimate_embedder.models.quiet import quiet_loading
from ultimate_embedder.models.tokenize import preprocess
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.models.vocabulary_head import pool_in_pieces
from ultimate_embedder.types import ModelDevice, ResolvedModel, VectorKind

if TYPE_CHECKING:
    import torch

SPARSE_MODULES = ("SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding")
ROUTERS = ("Router", "Asym")
MASKED_LANGUAGE_MODEL = "ForMaskedLM"
MOST_ROWS = 256  # of a batch: before they are stored vectors have a number for every word, 120 kB each with BERT's


class SparseModel(Encoder):
    """A loaded sparse encoder. A forward gives a number for every word; which of them are 0 is found on the host."""

    kind: VectorKind = "sparse"
    most_rows = MOST_ROWS

    def __init__(
        self, model: Any, name: str, *, document_prompt: str, query_prompt: str, max_tokens: int, in_pieces: bool
    ) -> None:
        """`in_pieces`: its last layer was replaced by one that needs little memory."""
        super().__init__(model, name, document_prompt=document_prompt, query_prompt=query_prompt, max_tokens=max_tokens)
        self.unit_norm = False
        self._in_pieces = in_pieces
        self._most_values: int | None = model.max_active_dims

    def can_pack(self, device: ModelDevice) -> bool:
        """Whether a batch can be run without padding: not if all logits would have to be padded afterwards."""
        return self._in_pieces and super().can_pack(device)

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """Run the model on one batch; returns float32 rows with a number for every word."""
        vectors = super().forward(batch)
        if self._most_values is None:
            return vectors
        import torch
        from sentence_transformers.util import select_max_active_dims

        with torch.inference_mode():
            return select_max_active_dims(vectors, max_active_dims=self._most_values)


def is_sparse_model(folder: Path) -> bool:
    """Whether the files of a model say that its vectors are sparse."""
    return any(module.type.endswith(SPARSE_MODULES) for module in read_modules(folder))


def require_sparse(model: ResolvedModel) -> None:
    """Refuse a model that is no sparse encoder: sentence-transformers would add layers with random weights to it."""
    modules = read_modules(model.path)
    named = read_object(model.path / "config.json").get("architectures") if not modules else None
    architectures = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if any(module.type.endswith((*SPARSE_MODULES, *ROUTERS)) for module in modules):
        return
    if any(name.endswith(MASKED_LANGUAGE_MODEL) for name in architectures):
        return
    raise _not_sparse(model)


def load_sparse_model(
    model: ResolvedModel,
    dtype: str,
    max_tokens: int | None = None,
    trusted: Sequence[str] = (),
    *,
    token_cap: int | None = None,
    for_queries: bool = False,
) -> SparseModel:
    """Load a sparse encoder on the host, from its resolved path; without network, and code or pickles only if trusted.

    `for_queries` matters for models that encode queries in another way than documents.
    """
    is_trusted = require_trust(model.spec, model.path, trusted)
    require_sparse(model)
    import_quickly("sentence_transformers")
    import torch
    from sentence_transformers import SparseEncoder

    try:
        with quiet_loading():
            loaded = SparseEncoder(
                str(model.path),
                device="cpu",
                local_files_only=True,
                trust_remote_code=is_trusted,
                model_kwargs=model_options(getattr(torch, dtype), is_trusted, model.spec),
            )
            loaded = _route(loaded, model, "query" if for_queries else "document")
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{model.name} cannot be loaded from {model.path}: {error}") from error
    loaded.eval()
    spec = model.spec
    document_prompt = own_prompt(loaded, spec.document_prompt if spec else None, DOCUMENT_PROMPT_NAMES)
    limit = token_limit(loaded, model.name, max_tokens, token_cap)
    in_pieces = pool_in_pieces(loaded, preprocess(loaded, CANARY, document_prompt))
    return SparseModel(
        loaded,
        model.name,
        document_prompt=document_prompt,
        query_prompt=own_prompt(loaded, spec.query_prompt if spec else None, QUERY_PROMPT_NAMES),
        max_tokens=limit,
        in_pieces=in_pieces,
    )


def _route(loaded: Any, model: ResolvedModel, task: str) -> Any:
    """The modules of a model for this task, where it has others for queries than for documents."""
    from sentence_transformers import SparseEncoder

    modules = list(loaded)
    if type(modules[0]).__name__ in ROUTERS:
        routes = modules[0].sub_modules
        if task not in routes:
            raise ModelError(f"{model.name} has no modules for a {task} ({', '.join(routes)}). Choose another model.")
        modules = [*routes[task], *modules[1:]]
        loaded = SparseEncoder(
            modules=modules, device="cpu", prompts=loaded.prompts, max_active_dims=loaded.max_active_dims
        )
    if not any(type(each).__name__ in SPARSE_MODULES for each in modules):
        raise _not_sparse(model)
    return loaded


def _not_sparse(model: ResolvedModel) -> ModelError:
    return ModelError(
        f"{model.name} is no sparse encoder ({model.path}): it has no SPLADE pooling and no language model's head. "
        "Give a SPLADE model to --sparse splade=; models with dense vectors go to --models."
    )
