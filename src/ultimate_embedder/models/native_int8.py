"""int8 on a CPU by our own kernels: the products of models of BERT's shape, where there is AVX-512 VNNI.

Weights have a scale for each output and each group of inputs; activations have 256 levels between the least and the
largest number of each group of a row, as those after GELU and after norms are not as far below 0 as above. Both are
rounded when they are used or loaded, so that nothing is exported and no texts are needed. Sums of groups, norms,
softmax and pooling are in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models.canary import CANARY, row_cosines
from ultimate_embedder.models.config_files import read_object
from ultimate_embedder.models.encoder import Encoder, as_encoder, load_encoder
from ultimate_embedder.models.fused import FusedSettings, Kernels, load_fused, read_checked
from ultimate_embedder.models.fused.native import Native, native
from ultimate_embedder.models.fused.settings import NATIVE
from ultimate_embedder.models.int8 import group_size
from ultimate_embedder.models.runtimes import TorchRuntime
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.types import ResolvedModel

if TYPE_CHECKING:
    import torch

INT8 = "int8"
ARCHITECTURES = ("bert", "camembert", "roberta", "xlm-roberta")
SIZE_STEP = 32  # what the kernels compute together, and the least group
LEAST_COSINE = 0.9  # of the worst canary text; less means that something is wrong
WAY_OUT = "Add --backend openvino, or drop --precision."
NO_KERNELS = (
    "--precision int8 --backend torch needs a CPU with AVX-512 VNNI, and a C++ compiler whose result can be loaded. "
    f"{WAY_OUT}"
)


def suits_native_int8(model: ResolvedModel) -> bool:
    """Whether the files of a model say that our own kernels can compute it in int8."""
    config = read_object(model.path / "config.json")
    sizes = [config.get("hidden_size"), config.get("intermediate_size")]
    return (
        config.get("model_type") in ARCHITECTURES
        and config.get("hidden_act", "gelu") == "gelu"
        and all(isinstance(size, int) and size > 0 and size % SIZE_STEP == 0 for size in sizes)
    )


def load_native_int8(
    model: ResolvedModel,
    way: str,
    max_tokens: int | None = None,
    trusted: Sequence[str] = (),
    *,
    token_cap: int | None = None,
) -> Encoder:
    """An encoder whose products are computed in int8; raises `UsageError` or `ModelError` where that cannot be."""
    kernels = native()
    if kernels is None or not kernels.has_int8:
        raise UsageError(NO_KERNELS)
    settings = _settings(model, max_tokens, trusted, token_cap)
    encoder = as_encoder(load_fused(model.path, settings, Kernels(NATIVE, NATIVE)), model, max_tokens, token_cap)
    in_fp32 = _vectors(encoder)
    _replace_products(encoder.model, way, kernels)
    encoder = encoder.with_runtime(TorchRuntime(INT8))
    cosine = float(row_cosines(_vectors(encoder), in_fp32).min())
    if not cosine >= LEAST_COSINE:
        raise ModelError(f"{model.name}: its vectors in int8 are wrong here (cosine {cosine:.3f} with fp32). {WAY_OUT}")
    return encoder


def _vectors(encoder: Encoder) -> np.ndarray:
    """Of a few texts."""
    texts = encoder.tokenize(CANARY)
    return np.asarray(encoder.forward(encoder.batch(texts, np.arange(len(CANARY)))).numpy())


def _settings(
    model: ResolvedModel, max_tokens: int | None, trusted: Sequence[str], token_cap: int | None
) -> FusedSettings:
    """The settings of the fused model in fp32, which is compared with sentence-transformers on first use."""
    require_trust(model.spec, model.path, trusted)
    checked = read_checked(model.digest)
    if checked is not None and checked.settings is not None:
        return checked.settings
    encoder = load_encoder(model, "float32", "cpu", max_tokens, trusted, token_cap=token_cap, may_fuse=True)
    if not encoder.fused:
        known = read_checked(model.digest)
        why = f" ({known.problem})" if known is not None and known.problem else ""
        raise ModelError(f"{model.name} cannot be computed in int8 by kernels of our own{why}. {WAY_OUT}")
    settings: FusedSettings = encoder.transformer.settings
    return settings


def _replace_products(parent: torch.nn.Module, way: str, kernels: Native) -> None:
    from ultimate_embedder.models.fused.products import Int8Product, Product

    for name, module in parent.named_children():
        if isinstance(module, Product):
            weight: Any = module.plain_weight
            setattr(parent, name, Int8Product(module, group_size(way, weight.shape[1]), kernels))
        else:
            _replace_products(module, way, kernels)
