"""The Python function: its signature is that of the options."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ultimate_embedder
from ultimate_embedder import embed
from ultimate_embedder.errors import UsageError
from ultimate_embedder.options import make_config

ACCEPTED = """
from pathlib import Path
from ultimate_embedder import RunSummary, embed

summary: RunSummary = embed("chunks/", output="out/", models=["all-minilm-l6-v2"])
embed("a", Path("b"), max_tokens=512, exports=["npy"], devices=["cpu"], deadline=3600, quiet=True)
embed("a", "b", models="bge-m3=0.7,all-minilm-l6-v2", deadline="11h30m", gpu0_ceiling="10GB", precision="fp16")
"""
REFUSED = {
    'embed("a", "b", max_tokens="x")': 'Argument "max_tokens" to "embed" has incompatible type "str"',
    'embed("a", "b", modles="x")': 'Unexpected keyword argument "modles" for "embed"',
    'embed("a", "b", precision="int4")': 'Argument "precision" to "embed" has incompatible type',
    'embed("a")': 'Missing positional argument "output" in call to "embed"',
    'embed("a", "b").no_such_field': '"RunSummary" has no attribute "no_such_field"',
}


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def type_errors(program: str, cache: Path) -> list[str]:
    """What mypy says about a program of someone who uses the package."""
    pytest.importorskip("mypy")
    file = cache / "program.py"
    file.write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--follow-imports=silent"]
    source = Path(ultimate_embedder.__file__).parents[1]
    done = subprocess.run(
        [*command, f"--cache-dir={cache}", "--no-error-summary", "--hide-error-context", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cache,
        env={"MYPYPATH": str(source), "PATH": ""},
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_type_checkers_know_the_options(mypy_cache: Path) -> None:
    program = "\n".join(["from ultimate_embedder import embed", *REFUSED])
    found = type_errors(program, mypy_cache)
    errors = [line for line in found if ": error:" in line]
    assert len(errors) == len(REFUSED), found
    for line, expected in zip(errors, REFUSED.values(), strict=True):
        assert expected in line
    assert type_errors(ACCEPTED, mypy_cache) == []


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
