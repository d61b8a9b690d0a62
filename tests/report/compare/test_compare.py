"""Two outputs compared: what differs, how far vectors agree, and what is wrong with an output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.report.compare.conftest import text
from tests.support.tiny_models import tiny_model
from ultimate_embedder import UsageError, compare, open_output
from ultimate_embedder.cli import main
from ultimate_embedder.output import Output


def test_an_output_against_itself_agrees_in_every_bit_and_says_that_it_is_itself(bert: Path) -> None:
    found = compare(bert, bert)
    assert "same folder" in found.notes[0]
    assert found.options == found.environment == ()
    ((pair,),) = [each.vectors for each in found.collections]
    assert pair.cosines is not None
    assert pair.cosines.equal == pair.texts == 60
    assert pair.neighbours is not None
    assert pair.neighbours.mean == pair.neighbours.same_nearest == 1.0
    assert (pair.neighbours.examples, pair.cosines.examples) == ((), ())


def test_cosines_and_neighbours_are_those_of_the_exported_vectors(bert: Path, short_bert: Path) -> None:
    """Computed once more by hand, from the exports, for the texts that both have."""
    found = compare(bert, short_bert, neighbours=3)
    ((pair,),) = [each.vectors for each in found.collections]
    vectors = [_by_text(output) for output in (bert, short_bert)]
    common = [text(number) for number in range(5, 60)]
    a, b = (np.array([each[one] for one in common]) for each in vectors)
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert pair.cosines is not None
    assert pair.neighbours is not None
    assert found.collections[0].texts is not None
    assert (found.collections[0].texts.common, pair.texts, pair.neighbours.sample) == (55, 55, 55)
    assert pair.cosines.mean == pytest.approx(cosines.mean(), abs=1e-6)
    assert pair.cosines.worst == pytest.approx(cosines.min(), abs=1e-6)
    assert pair.cosines.percentiles["p5"] == pytest.approx(np.percentile(cosines, 5), abs=1e-6)
    assert sum(pair.cosines.bins) == 55
    assert pair.cosines.examples[0].text.text == common[int(cosines.argmin())]
    nearest = [np.argsort(-(each @ each.T) + 9 * np.eye(55), axis=1)[:, :3] for each in (a, b)]
    shared = [len(set(one) & set(other)) for one, other in zip(nearest[0], nearest[1], strict=True)]
    assert pair.neighbours.mean == pytest.approx(np.mean(shared) / 3)
    assert found.collections[0].texts.changed_ids == 0


def test_what_differs_of_options_and_figures_is_side_by_side(bert: Path, short_bert: Path) -> None:
    found = compare(bert, short_bert, sample=0)
    assert ("max_tokens", None, 16) in [(each.name, each.a, each.b) for each in found.options]
    (collection,) = found.collections
    counts = {each.name: (each.a, each.b) for each in collection.counts}
    assert [counts["found"], counts["distinct texts"]] == [(60, 60), (60, 60)]
    assert counts["truncated"][0] == 0
    (one,) = collection.passes
    figures = {each.name: each for each in one.figures}
    summary = Output(short_bert).summary
    assert summary is not None
    assert figures["tokens per second"].b == summary.collections[0].passes[0].tokens_per_second
    assert {each.name for each in collection.models} == {"tiny-bert max tokens"}
    assert collection.vectors[0].neighbours is None


def test_different_models_are_compared_by_neighbours_alone(bert: Path, qwen: Path) -> None:
    found = compare(bert, qwen)
    ((pair,),) = [each.vectors for each in found.collections]
    assert pair.cosines is None
    assert "no meaning" in pair.why_no_cosines
    assert (pair.dim_a, pair.dim_b) == (64, 32)
    assert pair.neighbours is not None
    assert 0 < pair.neighbours.mean < 1
    assert sum(pair.neighbours.shared) == 60
    first = pair.neighbours.examples[0]
    assert first.text.chunk_id.startswith("chunk-")
    assert first.only_a
    assert first.only_b
    assert [(one.a, one.b) for one in found.collections[0].passes] == [("tiny-bert", "tiny-qwen2")]


def test_named_and_concatenated_vectors_are_equal_and_find_what_search_finds(
    ensembles: tuple[Path, Path], bert: Path
) -> None:
    pairs = compare(*ensembles).collections[0].vectors
    assert [pair.a for pair in pairs] == ["tiny-bert", "tiny-qwen2", "named(0.60 tiny-bert + 0.40 tiny-qwen2)"]
    assert all(pair.cosines is not None and pair.cosines.worst > 1 - 1e-6 for pair in pairs)
    overlaps = [pair.neighbours.mean for pair in pairs if pair.neighbours is not None]
    assert overlaps[:2] == [1.0, 1.0]
    assert 0.5 < overlaps[2] < 1.0  # named vectors are fused by their standardised scores
    (same,) = (pair.neighbours for pair in compare(ensembles[0], ensembles[0]).collections[0].vectors if pair.whole)
    assert same is not None
    assert same.mean == 1.0
    single = compare(ensembles[0], bert).collections[0].vectors
    assert [(pair.whole, pair.cosines is None) for pair in single] == [(False, False), (True, True)]


def test_an_output_without_its_store_is_compared_by_its_export(
    ensembles: tuple[Path, Path], copy_of: Callable[[Path], Path]
) -> None:
    for output in ensembles:
        copy = copy_of(output)
        shutil.rmtree(copy / "docs" / "store")
        pairs = compare(output, copy).collections[0].vectors
        assert all(pair.cosines is not None and pair.cosines.worst > 1 - 1e-6 for pair in pairs)
        assert any(pair.whole for pair in pairs)


def test_a_killed_run_is_compared_from_its_events_and_its_store(bert: Path, copy_of: Callable[[Path], Path]) -> None:
    killed = copy_of(bert)
    (killed / "summary.json").unlink()
    (killed / "docs" / "chunks.parquet").unlink()
    (killed / "docs" / "store" / "exports.json").unlink()
    found = compare(bert, killed)
    assert found.b.state == "not ended"
    assert "did not end" in found.notes[0]
    (collection,) = found.collections
    assert collection.vectors[0].texts == 60
    assert any("removed since" in note for note in collection.notes)
    assert collection.passes[0].figures
    (killed / "events.jsonl").unlink()
    blind = compare(bert, killed)
    assert blind.b.state == "not known"
    assert blind.collections[0].vectors[0].texts == 60


def test_damaged_vectors_are_named_and_left_out(bert: Path, copy_of: Callable[[Path], Path]) -> None:
    damaged = copy_of(bert)
    (shard,) = (damaged / "docs" / "store").glob("*/shard-*.npy")
    shard.write_bytes(shard.read_bytes()[:-5])
    (collection,) = compare(bert, damaged).collections
    assert collection.vectors  # by the export
    assert any("checksum does not match" in note for note in collection.notes)
    (damaged / "docs" / "chunks.parquet").write_bytes(b"PAR1 is not enough")
    (collection,) = compare(bert, damaged).collections
    assert collection.problem is not None
    assert "no vectors that can be read" in collection.problem


@pytest.mark.parametrize(("field", "value"), [("weight", -1.0), ("dim", 7000), ("fingerprint", "0123456789abcdef")])
def test_a_summary_that_does_not_fit_the_vectors_is_not_believed(
    field: str, value: object, ensembles: tuple[Path, Path], copy_of: Callable[[Path], Path]
) -> None:
    foreign = copy_of(ensembles[0])
    summary = json.loads((foreign / "summary.json").read_text("utf-8"))
    summary["collections"][0]["passes"][0][field] = value
    (foreign / "summary.json").write_text(json.dumps(summary), "utf-8")
    (collection,) = compare(ensembles[0], foreign).collections
    assert collection.problem is None
    assert all(pair.cosines is not None and pair.cosines.worst > 1 - 1e-6 for pair in collection.vectors[:1])


def test_outputs_without_a_common_text_or_collection_say_so(
    make_output: Callable[..., Path], bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(tiny_model("bert"))]
    other = make_output("other", range(100, 110), models=models)
    assert main(["compare", str(bert), str(other)]) == 4
    assert "no text is in both: 60 texts in A, 10 in B" in capsys.readouterr().out
    named = make_output("renamed", range(3), "elsewhere", models=models)
    assert compare(bert, named).collections[0].b == "elsewhere"  # the only one of each
    with pytest.raises(UsageError, match="no collection 'nothing'"):
        compare(bert, named, collection="nothing")
    (named / "more").mkdir()
    shutil.copytree(named / "elsewhere" / "store", named / "more" / "store")
    with pytest.raises(UsageError, match="no collection in common: docs and elsewhere, more"):
        compare(bert, named)


def test_what_is_no_output_is_refused(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="is not an output"):
        compare(bert, tmp_path / "empty")
    with pytest.raises(UsageError, match="is not a folder"):
        compare(tmp_path / "nowhere", bert)
    with pytest.raises(UsageError, match=r"ends in \.html"):
        compare(bert, bert, html=bert / "summary.json")
    with pytest.raises(UsageError, match="at most 20,000"):
        compare(bert, bert, sample=20_001)


def test_the_command_prints_a_table_that_no_text_can_steer_or_json(
    bert: Path, short_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(bert), str(short_bert), "--collection", "docs"]) == 0
    shown = capsys.readouterr().out
    assert "nearest neighbours are the same" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert main(["compare", str(bert), str(short_bert), "--json", "--sample", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(compare(bert, short_bert, sample=5).as_dict()))
    assert found["collections"][0]["vectors"][0]["neighbours"]["sample"] == 5


def _by_text(output: Path) -> dict[str, np.ndarray]:
    collection = open_output(output)["docs"]
    texts = collection.chunks()["text"].to_pylist()
    return dict(zip(texts, collection.vectors(), strict=True))
