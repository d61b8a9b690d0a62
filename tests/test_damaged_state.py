"""Every state file, damaged in every way: the next run completes with the right vectors, and says what was damaged."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.damage import Damage, damages, edits, resealed, restore, unsealed
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary
from ultimate_embedder.api import run_and_report
from ultimate_embedder.cli import main
from ultimate_embedder.export import find_exports, read_export_journal
from ultimate_embedder.export.upload_state import UploadJournal, drop_damaged_upload_state
from ultimate_embedder.files import file_sha256
from ultimate_embedder.options import make_config
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.session import Session, open_session
from ultimate_embedder.state import sealed
from ultimate_embedder.status import output_status
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.summary import CollectionSummary
from ultimate_embedder.vectors import store
from ultimate_embedder.vectors.row_kinds import row_dtype
from ultimate_embedder.verify import verify_output

TEXTS, SHARD_ROWS = 24, 8
MODELS = ("tiny-bert", "tiny-mpnet")
FILES = ("pass.json", "ledger.jsonl", "exports.json", "upload.json", "summary.json")
EVERY_CASE = os.environ.get("FUZZ_PROFILE") == "long"


class Runs:
    """Runs with two models, which are loaded once for all of them."""

    def __init__(self, root: Path) -> None:
        self.chunks = root / "chunks"
        for name in ("docs", "other"):
            (self.chunks / name).mkdir(parents=True)
            texts = [f"{name} {number} " * (number % 5 + 1) for number in range(TEXTS)]
            (self.chunks / name / "a_chunks.json").write_text(json.dumps(texts))
        self.models = ",".join(str(tiny_model(each, hidden=32, layers=1)) for each in ("bert", "mpnet"))
        self._session: Session | None = None

    def run(self, output: Path, **options: Any) -> RunSummary:
        options = {"exports": "npy,parquet", "collections": "docs", **options}
        config = make_config(self.chunks, output, models=self.models, devices="cpu", quiet=True, **options)
        self._session = self._session or open_session(config, lambda event: None, StopSwitch())
        return run_and_report(config, quiet=True, session=self._session)

    def docs(self, output: Path, **options: Any) -> CollectionSummary:
        """Run, and give the summary of the collection that is looked at; it must be completed."""
        (collection,) = self.run(output, **options).collections
        assert collection.status == "completed", (collection.error, collection.warnings)
        return collection

    def problems(self, output: Path) -> list[str]:
        """What `verify` calls damaged."""
        return verify_output(output, 0, make_config(self.chunks, output, models=self.models).hub).damaged


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SHARD_ROWS", SHARD_ROWS)
        ends = (SHARD_ROWS, 2 * SHARD_ROWS, 3 * SHARD_ROWS)
        patch.setattr("ultimate_embedder.execution.windows.FIRST_WINDOWS", ends)
        yield Runs(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def good(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with two collections, several shards each, and an upload that was interrupted; to be copied."""
    output = tmp_path_factory.mktemp("good") / "out"
    assert runs.run(output, collections="docs,other").ok
    assert runs.run(output).ok  # so that the summary is of the run that is repeated
    for collection in ("docs", "other"):
        UploadJournal(output / collection, "http://localhost:6333", collection, "0" * 64).note(10, force=True)
    assert len(list(pass_folder(output, MODELS[1]).glob("shard-*"))) > 2
    return output


@pytest.fixture
def out(good: Path, tmp_path: Path) -> Path:
    return restore(good, tmp_path / "out")


def find(name: str, output: Path, collection: str = "docs") -> Path:
    """The state file of that name: of the second model, or of the collection, or of the run."""
    folders = {
        "summary.json": output,
        "exports.json": output / collection / "store",
        "upload.json": output / collection,
    }
    return (folders.get(name) or pass_folder(output, MODELS[1], collection)) / name


def pass_folder(output: Path, model: str, collection: str = "docs") -> Path:
    for path in (output / collection / "store").glob("*/pass.json"):
        if json.loads(path.read_text())["identity"]["model"] == model:
            return path.parent
    raise AssertionError(model)


@functools.cache
def read_vectors(path: Path) -> np.ndarray:
    return np.asarray(np.load(path))


def assert_same_vectors(out: Path, good: Path) -> None:
    for model in MODELS:
        made = np.load(CollectionOutput(out / "docs").embeddings_of(model))
        np.testing.assert_allclose(made, read_vectors(CollectionOutput(good / "docs").embeddings_of(model)), atol=1e-5)


def assert_mended(runs: Runs, good: Path, out: Path, damaged: Path) -> CollectionSummary:
    """Look at a damaged output, run again, and look at what it is now."""
    before = runs.problems(out)
    output_status(out)
    done = runs.docs(out)
    assert_same_vectors(out, good)
    assert done.passes[0].encoded_texts == 0  # the other model's vectors are not computed again
    noted = any(str(damaged.parent) in warning for warning in done.warnings)
    assert noted or not done.passes[1].encoded_texts
    assert bool(before) == noted or damaged.name == "summary.json"  # a summary is written by every run
    assert runs.problems(out) == []
    return done


CASES = [pytest.param(name, damage, id=f"{name}: {words}") for name in FILES for words, damage in damages().items()]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_run_mends_what_is_damaged(runs: Runs, good: Path, out: Path, name: str, damage: Damage) -> None:
    path = find(name, out)
    damage(path)
    assert_mended(runs, good, out, path)


@pytest.mark.parametrize("name", FILES)
def test_what_was_mended_is_not_mentioned_again(runs: Runs, out: Path, name: str) -> None:
    find(name, out).write_bytes(bytes(100))
    runs.run(out)
    assert runs.docs(out).warnings == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_collection_is_told_from_that_of_this_one(
    runs: Runs, good: Path, out: Path, name: str
) -> None:
    if name != "summary.json":
        shutil.copy(find(name, out, "other"), find(name, out))
    done = runs.docs(out)
    assert_same_vectors(out, good)
    assert done.passes[0].encoded_texts == 0
    assert runs.problems(out) == []


def test_the_description_of_another_pass_is_told_from_that_of_this_one(runs: Runs, good: Path, out: Path) -> None:
    first, second = (pass_folder(out, model) / "pass.json" for model in MODELS)
    shutil.copy(first, second)
    assert runs.problems(out) == [f"{second} is damaged (it describes another pass)"]
    done = runs.docs(out)
    assert [each.encoded_texts for each in done.passes] == [0, 0]
    assert_same_vectors(out, good)


def test_a_damaged_line_in_the_middle_costs_its_shard_alone(runs: Runs, good: Path, out: Path) -> None:
    path = find("ledger.jsonl", out)
    lines = path.read_bytes().splitlines(keepends=True)
    rows = json.loads(lines[1])["rows"]
    lines[1] = lines[1].replace(b"rows", b"sowr")
    path.write_bytes(b"".join(lines))
    done = assert_mended(runs, good, out, path)
    assert done.passes[1].encoded_texts == rows < TEXTS
    assert done.warnings == [
        f"{path} is damaged (line 2: its checksum does not match); recomputing the vectors that it does not list"
    ]


# what has the right checksum, or none, and still cannot be right


def damaged_lines(content: bytes) -> Iterator[tuple[str, bytes]]:
    first, *rest = content.splitlines(keepends=True)
    for words, line in edits(json.loads(first)):
        for form, written in (("old", unsealed(line)), ("forged", resealed(line))):
            yield f"{form} {words}", json.dumps(written).encode() + b"\n" + b"".join(rest)
    yield "a line twice", first + content


def damaged_objects(content: bytes) -> Iterator[tuple[str, bytes]]:
    for words, values in edits(json.loads(content)):
        for form, written in (("old", unsealed(values)), ("forged", resealed(values))):
            yield f"{form} {words}", json.dumps(written).encode()


@pytest.mark.parametrize("name", [name for name in FILES if name != "summary.json"])
def test_values_that_cannot_be_right_are_survived(runs: Runs, good: Path, out: Path, name: str) -> None:
    """Every value in turn is missing, or of another type: a sample of these, and with FUZZ_PROFILE=long all."""
    path, content = find(name, out), find(name, good).read_bytes()
    cases = list(damaged_lines(content) if name == "ledger.jsonl" else damaged_objects(content))
    assert len(cases) > 50
    cases = cases if EVERY_CASE else cases[:: len(cases) // 40]
    for number, (words, damaged) in enumerate(cases):
        path.write_bytes(damaged)
        try:
            runs.problems(out)
            output_status(out)
            find_exports(out / "docs", ["npy", "parquet"])
            drop_damaged_upload_state(out / "docs")
            assert all(Path(each["name"]).name == each["name"] for each in read_export_journal(out / "docs").values())
            if EVERY_CASE or number % (len(cases) // 4) == 0:
                runs.docs(out)
                assert_same_vectors(out, good)
                assert runs.problems(out) == []
                restore(good, out)
        except Exception as error:
            raise AssertionError(words) from error


@pytest.mark.parametrize("name", ["../../x", "shard-1.npy", "shard-00000.npy\n", "/etc/passwd", "shard-٠٠٠٠٠.npy", ""])
def test_a_shard_with_another_name_is_not_looked_for(runs: Runs, good: Path, out: Path, name: str) -> None:
    path = find("ledger.jsonl", out)
    first, *rest = path.read_text().splitlines()
    line = resealed({**json.loads(first), "shard": name})
    path.write_text("".join(f"{each}\n" for each in (json.dumps(line), *rest)))
    assert runs.problems(out)[0] == f"{path} is damaged (line 1: shard is not the name of a shard)"
    assert_mended(runs, good, out, path)


@pytest.mark.parametrize("name", ["../other", "store", "Store", "upload.json", "", ".", "/etc"])
def test_an_export_with_another_name_is_neither_read_nor_deleted(runs: Runs, good: Path, out: Path, name: str) -> None:
    path = find("exports.json", out)
    journal = json.loads(path.read_text())
    journal["npy"] |= {"name": name, "identity": "out of date"}
    path.write_text(json.dumps(resealed(journal)))
    assert "is damaged ('npy': the name" in runs.problems(out)[0]
    assert find_exports(out / "docs", ["npy"]) is None
    done = runs.docs(out)
    assert [each.encoded_texts for each in done.passes] == [0, 0]
    assert (out / "other" / "store").is_dir()
    assert (out / "docs" / "upload.json").exists()
    assert_same_vectors(out, good)


# files of the version before


def without_checksums(output: Path) -> None:
    for name in ("pass.json", "exports.json", "upload.json"):
        for path in output.rglob(name):
            path.write_text(json.dumps(unsealed(json.loads(path.read_text())), indent=2))
    for path in output.rglob("ledger.jsonl"):
        lines = [unsealed(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_files_without_checksums_are_read_and_their_vectors_reused(runs: Runs, good: Path, out: Path) -> None:
    without_checksums(out)
    assert runs.problems(out) == []
    done = runs.docs(out)
    assert (done.warnings, [each.encoded_texts for each in done.passes]) == ([], [0, 0])
    assert_same_vectors(out, good)


def test_a_wrong_dimension_without_a_checksum_costs_nothing(runs: Runs, good: Path, out: Path) -> None:
    without_checksums(out)
    path = find("pass.json", out)
    path.write_text(path.read_text().replace('"dim": 32', '"dim": 33'))
    assert runs.problems(out)
    done = assert_mended(runs, good, out, path)
    assert done.passes[1].encoded_texts == 0


# other ways to come upon a damaged file


@pytest.mark.parametrize("name", ["exports.json", "pass.json", "ledger.jsonl"])
@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"[]", b'{"npy": {"name": 1}}\n'])
def test_skip_existing_survives_it(runs: Runs, good: Path, out: Path, name: str, content: bytes) -> None:
    find(name, out).write_bytes(content)
    (done,) = runs.run(out, skip_existing=True).collections
    assert done.status == ("completed" if name == "exports.json" else "skipped_existing")
    assert_same_vectors(out, good)


@pytest.mark.parametrize("name", ["pass.json", "ledger.jsonl"])
@pytest.mark.parametrize("damage", [pytest.param(each, id=words) for words, each in damages().items()][::3])
def test_resume_from_survives_it(runs: Runs, good: Path, out: Path, tmp_path: Path, name: str, damage: Damage) -> None:
    damage(find(name, out))
    done = runs.docs(tmp_path / "new", resume_from=out)
    assert done.passes[0].encoded_texts == 0
    assert_same_vectors(tmp_path / "new", good)
    assert runs.problems(tmp_path / "new") == []


@pytest.mark.parametrize("fault", ["dimension", "not finite", "no array", "fewer rows", "newer version"])
def test_resume_from_takes_nothing_over_that_does_not_fit(
    runs: Runs, good: Path, out: Path, tmp_path: Path, fault: str
) -> None:
    """All checksums are right: somebody has made this output."""
    folder = pass_folder(out, MODELS[1])
    forge(folder, fault)
    done = runs.docs(tmp_path / "new", resume_from=out)
    assert done.passes[0].encoded_texts == 0
    assert any(str(folder) in warning for warning in done.warnings)
    assert_same_vectors(tmp_path / "new", good)


def forge(folder: Path, fault: str) -> None:
    if fault == "newer version":
        described = json.loads((folder / "pass.json").read_text())
        (folder / "pass.json").write_text(json.dumps(resealed({**described, "store_version": 99})))
        return
    lines = []
    for line in map(json.loads, (folder / "ledger.jsonl").read_text().splitlines()):
        path = folder / line["shard"]
        rows = np.load(path)
        if fault == "dimension":
            wider = np.zeros(len(rows), row_dtype(40))
            wider["key"] = rows["key"]
            np.save(path, wider)
        elif fault == "not finite":
            rows["vector"][0, 0] = np.nan
            np.save(path, rows)
        elif fault == "no array":
            path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118)
        else:
            np.save(path, rows[:1])
        lines.append(resealed({**line, "sha256": file_sha256(path)}))
    (folder / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_the_command_line_says_what_is_damaged(runs: Runs, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [find(name, out) for name in FILES]
    for path in paths:
        path.write_bytes(b"damaged\n")
    assert main(["verify", str(out), "--sample", "0"]) == 1
    told = capsys.readouterr().out
    assert all(str(path) in told for path in paths)
    assert main(["status", str(out)]) == 0
    shown = capsys.readouterr()
    assert "pass.json and ledger.jsonl" in shown.out
    assert "summary.json" in shown.err


def test_an_export_that_is_not_asked_for_is_not_kept_if_nobody_knows_what_it_was_made_from(
    runs: Runs, out: Path
) -> None:
    find("exports.json", out).write_bytes(b"")
    done = runs.docs(out, exports="npy")
    assert not (out / "docs" / "chunks.parquet").exists()
    assert "it is not known whether it is up to date" in done.warnings[1]
    assert sealed(read_export_journal(out / "docs")).keys() == {"npy", "checksum"}
