"""`verify`, through the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteChunks
from tests.support.damage import resealed
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.files import file_sha256
from ultimate_embedder.output import Output

Verify = Callable[..., tuple[int, list[str]]]
NOT_CHECKED = 4


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks([f"text {n}" for n in range(30)], "c")


@pytest.fixture
def output(chunks: Path, tmp_path: Path) -> Path:
    embed(chunks, tmp_path / "out", models=str(tiny_model("bert")), devices="cpu", quiet=True)
    return tmp_path / "out"


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """Run the command; gives its exit code and its lines on stdout."""

    def run(output: Path, *options: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = main(["verify", str(output), *options])
        return code, capsys.readouterr().out.splitlines()

    return run


def spoil_stored_vectors(output: Path) -> None:
    """Store the vectors of other texts, with correct checksums, as a program with a bug would."""
    (stored,) = Output(output)["c"].passes
    rows = np.load(stored.shard(0))
    rows["vector"] = np.roll(rows["vector"], 1, axis=0)
    np.save(stored.shard(0), rows)
    line = {**json.loads(stored.ledger.read_text()), "sha256": file_sha256(stored.shard(0))}
    stored.ledger.write_text(json.dumps(resealed(line)) + "\n")


def test_a_good_output_verifies(output: Path, verify: Verify) -> None:
    done = "checked 1 shard and 3 exports; recomputed 20 vectors: all match"
    assert verify(output) == (0, [done, "OK: all checksums match"])


def test_without_a_sample_only_checksums_are_compared(output: Path, verify: Verify) -> None:
    done = "checked 1 shard and 3 exports; recomputed 0 vectors"
    assert verify(output, "--sample", "0") == (0, [done, "OK: all checksums match"])


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ("c/store/*/shard-00000.npy", "is damaged (its checksum does not match)"),
        ("c/embeddings.npy", "is damaged or was changed (its checksum does not match)"),
        ("c/chunks.parquet", "is damaged or was changed"),
    ],
)
def test_a_flipped_bit_anywhere_is_found(output: Path, verify: Verify, damaged: str, words: str) -> None:
    (path,) = output.glob(damaged)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    code, lines = verify(output)
    assert code == 1
    assert words in lines[0]


def test_stored_vectors_of_another_text_are_found_by_computing_some_again(output: Path, verify: Verify) -> None:
    spoil_stored_vectors(output)
    code, lines = verify(output, "--sample", "3")
    assert code == 1
    assert len([line for line in lines if "does not match its text (cosine" in line]) == 3
    assert lines[-1] == "checked 1 shard and 3 exports; recomputed 3 vectors: 3 do not match"


# where texts and models come from


@pytest.mark.parametrize("exports", ["jsonl", "none", "npy"])
def test_vectors_are_recomputed_also_without_a_points_file(
    chunks: Path, tmp_path: Path, verify: Verify, exports: str
) -> None:
    out = tmp_path / "out"
    embed(chunks, out, models=str(tiny_model("bert")), devices="cpu", exports=exports, quiet=True)
    code, lines = verify(out)
    assert (code, lines[-1]) == (0, "OK: all checksums match")
    assert "recomputed 20 vectors: all match" in lines[-2]
    spoil_stored_vectors(out)
    assert verify(out)[0] == 1


def test_vectors_are_recomputed_from_the_field_that_was_chosen(tmp_path: Path, verify: Verify) -> None:
    (tmp_path / "a.jsonl").write_text('{"summary": "one", "text": "long"}\n{"summary": "two", "text": "longer"}\n')
    model, out = str(tiny_model("bert")), tmp_path / "out"
    embed(tmp_path / "a.jsonl", out, models=model, devices="cpu", exports="none", text_field="summary", quiet=True)
    code, lines = verify(out)
    assert (code, lines[-1]) == (0, "OK: all checksums match")
    assert "recomputed 2 vectors: all match" in lines[-2]


def test_an_output_of_the_v5_script_is_verified_by_its_own_summary(output: Path, verify: Verify) -> None:
    (output / "summary.json").rename(Output(output).v5_summary_path)
    code, lines = verify(output)
    assert (code, lines[0]) == (0, "checked 1 shard and 3 exports; recomputed 20 vectors: all match")


def test_without_a_summary_the_model_is_found_by_its_name(chunks: Path, tmp_path: Path, verify: Verify) -> None:
    out = tmp_path / "out"
    embed(chunks, out, models="all-minilm-l6-v2", max_tokens=32, devices="cpu", quiet=True)
    (out / "summary.json").unlink()
    code, lines = verify(out)
    assert (code, lines[0]) == (0, "checked 1 shard and 3 exports; recomputed 20 vectors: all match")
    spoil_stored_vectors(out)
    assert verify(out)[0] == 1


def test_a_collection_that_the_last_run_skipped_is_verified_too(chunks: Path, output: Path, verify: Verify) -> None:
    embed(chunks, output, models=str(tiny_model("bert")), devices="cpu", skip_existing=True, quiet=True)
    assert verify(output)[0] == 0


def test_what_is_unknown_without_a_summary_is_told_and_the_rest_is_compared(
    chunks: Path, tmp_path: Path, verify: Verify
) -> None:
    out = tmp_path / "out"
    models = ["all-minilm-l6-v2", str(tiny_model("bert"))]
    embed(chunks, out, models=models, fusion="concat", devices="cpu", quiet=True)
    (out / "summary.json").unlink()
    code, lines = verify(out)
    assert code == NOT_CHECKED
    assert lines[0] == "not checked: c: tiny-bert is not in the registry, and there is no summary with its path"
    assert (
        lines[1]
        == "not checked: c: chunks.parquet: there is no summary that says which of the stored vectors it was made from"
    )
    assert lines[2] == "checked 2 shards and 3 exports; recomputed 20 vectors: all match"


# what cannot be checked


def test_vectors_without_texts_are_not_called_good(chunks: Path, tmp_path: Path, verify: Verify) -> None:
    out = tmp_path / "out"
    embed(chunks, out, models=str(tiny_model("bert")), devices="cpu", exports="npy", quiet=True)
    shutil.rmtree(chunks)
    code, lines = verify(out)
    assert code == NOT_CHECKED
    assert lines[0] == (
        "not checked: c: there are no texts to recompute vectors from: no chunks.parquet and points.jsonl, "
        f"and the chunk files are not at {chunks}"
    )
    assert lines[1:] == ["checked 1 shard and 1 export; recomputed 0 vectors"]


def test_a_model_that_has_changed_is_told(chunks: Path, tmp_path: Path, verify: Verify) -> None:
    model = Path(shutil.copytree(tiny_model("bert"), tmp_path / "mine"))
    embed(chunks, tmp_path / "out", models=str(model), devices="cpu", quiet=True)
    (model / "README.md").write_text("changed")
    code, lines = verify(tmp_path / "out")
    assert code == NOT_CHECKED
    assert lines[0].startswith(
        "not checked: c: mine on this machine is not the model of these vectors (its files differ)"
    )


def test_a_collection_whose_folder_is_gone_is_told(output: Path, verify: Verify) -> None:
    shutil.rmtree(output / "c")
    code, lines = verify(output)
    assert (code, lines[0]) == (NOT_CHECKED, "not checked: c: its folder is missing")


def test_a_folder_that_is_no_output_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "is not an output of ultimate-embedder" in capsys.readouterr().err


def test_the_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    assert "4 nothing is damaged, but not everything could be checked" in " ".join(capsys.readouterr().out.split())
