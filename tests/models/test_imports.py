"""What is not imported until it is called, and that it is there then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ultimate_embedder.models.imports import import_quickly

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


@pytest.mark.slow
def test_functions_that_encoding_never_calls_are_imported_when_they_are_called() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False False", "5.0", "[0, 1] True"]


def test_a_module_that_wants_more_of_them_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greedy_module.py").write_text("from sklearn.metrics import f1_score, pairwise_distances")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    import_quickly("greedy_module")
    assert sys.modules["greedy_module"].f1_score([1, 0], [1, 0]) == 1.0


def test_a_module_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_quickly("no_such_module")
