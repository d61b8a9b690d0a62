"""The Python function: its signature is that of the options."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ultimate_embedder
from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.errors import UsageError
from ultimate_embedder.options import make_config

PROGRAM = """
from pathlib import Path
import numpy as np
from ultimate_embedder import Embedder, OpenedOutput, RunSummary, embed, open_output, upload

with Embedder({"bge-m3": 0.7, "all-minilm-l6-v2": 0.3}, fusion="concat", devices=["cpu"], precision="fp32") as embedder:
    vectors = embedder.encode(["a", "b"])
    assert isinstance(vectors, np.ndarray)
    similar = vectors @ vectors.T
    names: tuple[str, ...] = embedder.models
output: OpenedOutput = open_output("out")
for collection in output:
    rows: int = len(collection)
    width: int = collection.vectors("bge-m3").shape[1]
    texts: list[str] = [point.payload["text"] for point in collection.points()]
counted: int = sum(report.counted for report in upload("out", "http://localhost:6333", quiet=True))
summary: RunSummary = embed("chunks/", output="out/", models=["all-minilm-l6-v2"])
embed("a", Path("b"), max_tokens=512, exports=["npy"], devices=["cpu"], deadline=3600, quiet=True)
embed("a", "b", models="bge-m3=0.7,all-minilm-l6-v2", deadline="11h30m", gpu0_ceiling="10GB", precision="fp16")
"""
REFUSED = {
    'embed("a", "b", max_tokens="x")': 'Argument "max_tokens" to "embed" has incompatible type "str"',
    'embed("a", "b", modles="x")': 'Unexpected keyword argument "modles" for "embed"',
    'embed("a", "b", precision="int4")': 'Argument "precision" to "embed" has incompatible type',
    'Embedder(modles="x")': 'Unexpected keyword argument "modles" for "Embedder"',
    'Embedder("a", max_tokens="x")': 'Argument "max_tokens" to "Embedder" has incompatible type "str"',
    "open_output(3)": 'Argument 1 to "open_output" has incompatible type "int"',
    'embed("a")': 'Missing positional argument "output" in call to "embed"',
}


@pytest.mark.slow
def test_type_checkers_know_the_options(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text("\n".join([PROGRAM, *REFUSED]), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--follow-imports=silent"]
    command += ["--no-site-packages", "--ignore-missing-imports"]  # torch and others would take a minute
    done = subprocess.run(
        [*command, "--cache-dir=cache", "--no-error-summary", "program.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(ultimate_embedder.__file__).parents[1])},
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == len(REFUSED), done.stdout + done.stderr
    for line, expected in zip(errors, REFUSED.values(), strict=True):
        assert expected in line


def test_the_signature_lists_every_option_with_plain_types() -> None:
    signature = inspect.signature(embed)
    assert list(signature.parameters) == list(inspect.signature(make_config).parameters)
    assert signature.parameters["max_tokens"].annotation == int | None
    assert signature.parameters["quiet"].annotation is bool
    assert signature.return_annotation is ultimate_embedder.RunSummary
    assert "Annotated" not in str(signature)
    assert "max_tokens: truncate texts to N tokens" in (embed.__doc__ or "")


def test_a_misspelled_option_is_wrong_usage_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        embed("a", "b", modles="x")  # type: ignore[call-arg]
    assert str(caught.value) == "embed() has no option 'modles'. Did you mean models?"


def test_exports_may_be_called_like_the_flag_but_not_twice(write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks, model = write_chunks(["one"]), str(tiny_model("bert"))
    summary = embed(chunks, tmp_path / "out", models=model, export="npy", quiet=True)  # type: ignore[call-arg]
    assert [each.kind for each in summary.collections[0].exports] == ["npy"]
    with pytest.raises(UsageError, match=r"embed\(\) was given exports twice, also as export"):
        embed(chunks, tmp_path / "out", exports="npy", export="npy")  # type: ignore[call-arg]
