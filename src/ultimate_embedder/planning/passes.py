"""The passes over a collection: which models, what each weighs, and what identifies its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ultimate_embedder.config import ModelChoice, RunConfig, SparseChoice
from ultimate_embedder.errors import UsageError
from ultimate_embedder.files import safe_name
from ultimate_embedder.models import (
    BM25,
    check_dim,
    check_max_tokens,
    int8_backend,
    is_sparse_model,
    native_dim,
    require_sparse,
    suits_native_int8,
    usual_way,
)
from ultimate_embedder.names import same_name
from ultimate_embedder.output import embeddings_name
from ultimate_embedder.types import PassIdentity, ResolvedModel, VectorKind
from ultimate_embedder.vectors import Candidate, plan_fusion

ChosenModel = tuple[ModelChoice, ResolvedModel]
ChosenSparse = tuple[SparseChoice, ResolvedModel]
FULL = "float32"
CARD_LAYOUT = "bucketed"


@dataclass(frozen=True)
class PassPlan:
    """One model over one collection: which vectors, and what they weigh.

    Weights of the dense models of a collection sum to one; sparse vectors are not fused, and weigh nothing.
    """

    number: int
    model: ResolvedModel
    weight: float
    identity: PassIdentity
    batch_tokens: int | None = None
    """The most padded tokens of a batch, if the user has set it; memory may make it less."""
    batch_rows: int | None = None
    """The most rows of a batch, likewise."""
    backend: str = "torch"
    """What computes it."""
    queries: bool = False
    """Whether the texts are queries, which may have a prompt of their own."""

    @property
    def name(self) -> str:
        """The model."""
        return self.model.name

    @property
    def kind(self) -> VectorKind:
        """Of its vectors."""
        return self.identity.kind

    @property
    def on_cpu(self) -> bool:
        """Whether it is planned for a CPU."""
        return self.identity.layout != CARD_LAYOUT

    @property
    def loses_on_cpu(self) -> bool:
        """Whether a CPU computes it in less than fp32, so that it is compared with that."""
        return self.identity.dtype == "int8" or (self.identity.dtype == "bfloat16" and self.on_cpu)

    @property
    def counts_words(self) -> bool:
        """Whether it is BM25, which needs no model and no device."""
        return self.identity.bm25 is not None


def plan_passes(
    config: RunConfig,
    models: Sequence[ChosenModel],
    dtype: str,
    *,
    on_cpu: bool,
    has_vnni: bool = False,
    sparse: Sequence[ChosenSparse] = (),
) -> list[PassPlan]:
    """The passes over a collection, in order; refuses what cannot be fused before anything is computed.

    `dtype` is what the devices compute in. Sparse models follow the dense ones, and BM25 is the last.
    """
    _check_names([model.name for _, model in models])
    _check_sparse(models, sparse)
    for _, model in models:
        check_dim(model, config.dim)
    for _, model in (*models, *sparse):
        check_max_tokens(model, config.max_tokens)
    if (config.backend != "torch" or config.precision == "int8") and not on_cpu:
        asked = "--precision int8" if config.precision == "int8" else f"--backend {config.backend}"
        raise UsageError(f"{asked} runs on the CPU. Add --devices cpu.")
    if config.min_cosine is not None and not on_cpu:
        raise UsageError("--min-cosine chooses how a CPU computes. Add --devices cpu, or drop it.")
    _check_fusion(config, models)
    _check_batch_hints(config, [*models, *((choice, model) for choice, model in sparse if choice.model)])
    total = sum(choice.weight for choice, _ in models)
    passes = [
        PassPlan(
            number=number,
            model=model,
            weight=choice.weight / total,
            identity=_identity(config, model, dtype, on_cpu=on_cpu, has_vnni=has_vnni),
            batch_tokens=config.batch_tokens_for(choice.name, model.name),
            batch_rows=config.batch_rows,
            backend=_backend_for(config, model, dtype),
        )
        for number, (choice, model) in enumerate(models)
    ]
    for choice, model in sorted(sparse, key=lambda each: each[0].method == BM25):
        passes.append(_plan_sparse(config, choice, model, len(passes), dtype, on_cpu=on_cpu))
    return passes


def _plan_sparse(
    config: RunConfig, choice: SparseChoice, model: ResolvedModel, number: int, dtype: str, *, on_cpu: bool
) -> PassPlan:
    if choice.bm25 is not None:
        # neither the version of the package nor where it is matters: the digest tells what it does
        identity = PassIdentity(BM25, BM25, model.digest, FULL, None, None, None, layout="counts")
        return PassPlan(number, model, 0.0, replace(identity, kind="sparse", bm25=choice.bm25))
    # other backends compute vectors of tokens, and not what a language model predicts
    is_known = config.backend == "torch" and dtype != "int8"
    identity = _identity(config, model, dtype if is_known else FULL, on_cpu=on_cpu)
    identity = replace(identity, dim=None, kind="sparse", layout=_layout("torch", on_cpu=on_cpu))
    tokens = config.batch_tokens_for(choice.model or "", model.name)
    return PassPlan(number, model, 0.0, identity, batch_tokens=tokens, batch_rows=config.batch_rows)


def _check_sparse(models: Sequence[ChosenModel], sparse: Sequence[ChosenSparse]) -> None:
    """Refuse models on the wrong side, and sparse vectors that would have the name of another vector."""
    for choice, model in models:
        if is_sparse_model(model.path):
            raise UsageError(f"--models {choice.name}: its vectors are sparse. Write --sparse splade={choice.name}.")
    for sparse_choice, model in sparse:
        if sparse_choice.bm25 is None:
            require_sparse(model)
    names = [same_name(safe_name(model.name)) for _, model in (*models, *sparse)]
    for sparse_choice, model in sparse:
        if names.count(same_name(safe_name(model.name))) > 1:
            raise UsageError(
                f"--sparse {sparse_choice.method}: {model.name} is the name of another vector too. Drop one, or rename "
                "the folder of one."
            )


def _check_names(models: Sequence[str]) -> None:
    """Refuse models whose vectors would be one file."""
    names = [same_name(safe_name(model)) for model in models]
    for model, name in zip(models, names, strict=True):
        if names.count(name) > 1:
            raise UsageError(f"--models names {model} twice. Drop one, or rename the folder of one.")
        if len(models) > 1:
            embeddings_name(model)


def as_candidate(model: ResolvedModel, weight: float, dim: int) -> Candidate:
    """A model as fusion sees it."""
    return Candidate(model.name, weight, dim, model.spec.matryoshka_dims if model.spec else ())


def _check_fusion(config: RunConfig, models: Sequence[ChosenModel]) -> None:
    dims = [config.dim or native_dim(model) for _, model in models]
    if all(dims):
        pairs = zip(models, dims, strict=True)
        plan_fusion(config.fusion, [as_candidate(model, choice.weight, dim or 0) for (choice, model), dim in pairs])


def _check_batch_hints(config: RunConfig, models: Sequence[ChosenModel | ChosenSparse]) -> None:
    names = [name for choice, model in models for name in (_word(choice), model.name)]
    for hint in config.batch_tokens:
        if hint.model is not None and hint.model not in names:
            known = ", ".join(model.name for _, model in models)
            raise UsageError(f"--batch-tokens {hint.model}={hint.tokens}: the models are {known}.")


def _word(choice: ModelChoice | SparseChoice) -> str:
    """A model as the user named it."""
    return choice.name if isinstance(choice, ModelChoice) else choice.model or ""


def _identity(
    config: RunConfig, model: ResolvedModel, dtype: str, *, on_cpu: bool, has_vnni: bool = False
) -> PassIdentity:
    prompt = model.spec.document_prompt if model.spec else None
    backend = _backend_for(config, model, dtype)
    return PassIdentity(
        model=model.name,
        revision=model.revision,
        model_digest=model.digest,
        dtype=dtype,
        max_tokens=config.max_tokens or config.token_cap,
        dim=config.dim,
        document_prompt=prompt.text if prompt else None,
        # a rule, not a race: on a CPU rows end to end save the padding, on a card they cost many small kernels
        layout=_layout(backend, on_cpu=on_cpu),
        # segments that are points of their own are texts like others
        overlong="pool" if config.overlong == "pool" else "truncate",
        overlap=config.overlap if config.overlong == "pool" else None,
        quantization=usual_way(backend, has_vnni=has_vnni) if dtype == "int8" else None,
    )


def _backend_for(config: RunConfig, model: ResolvedModel, dtype: str) -> str:
    """What computes a model: in int8 our own kernels only those that suit them, another runtime the others."""
    if dtype != "int8" or config.backend != "torch" or suits_native_int8(model):
        return config.backend
    return int8_backend()


def _layout(backend: str, *, on_cpu: bool) -> str:
    """How rows of several lengths are laid out: a rule from what each way costs (benchmarks/host_calls.py)."""
    if not on_cpu:
        return CARD_LAYOUT  # end to end would be six times as many kernels, and the host has to launch each
    return "packed" if backend == "torch" else "padded"
