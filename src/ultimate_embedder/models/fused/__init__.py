"""A faster forward on the CPU for models of BERT's shape, without sentence-transformers and transformers.

It reads the model's own files. Before it is first used on a model it is compared with sentence-transformers, token by
token and vector by vector; the result is remembered for these files, versions and this processor, and later runs need
not import the two, which takes longer than loading the model.
"""

from ultimate_embedder.models.fused.check import Checked, compare, read_checked, remember
from ultimate_embedder.models.fused.load import describe_fused, find_fastest_kernels, load_fused
from ultimate_embedder.models.fused.settings import FusedSettings, Kernels, NotFusibleError, settings_of

__all__ = [
    "Checked",
    "FusedSettings",
    "Kernels",
    "NotFusibleError",
    "compare",
    "describe_fused",
    "find_fastest_kernels",
    "load_fused",
    "read_checked",
    "remember",
    "settings_of",
]
