"""What is not imported until it is called, and that it is there then."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from ultimate_embedder.models import load_encoder, resolve_model
load_encoder(resolve_model("all-minilm-l6-v2"), "float32", "cpu")
print(*(name in sys.modules for name in ("sklearn", "scipy.optimize", "sklearn.metrics")))
from sentence_transformers.util.similarity import pairwise_distances
print(pairwise_distances([[0.0, 3.0]], [[4.0, 0.0]])[0, 0])
import scipy.optimize, sklearn.metrics
print(scipy.optimize.linear_sum_assignment([[1, 2], [2, 1]])[1].tolist(), hasattr(sklearn, "clone"))
"""


def test_functions_that_encoding_never_calls_are_imported_when_they_are_called() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False False", "5.0", "[0, 1] True"]
