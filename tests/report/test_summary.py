"""The summary of real runs: complete, true, and there however the run ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from qdrant_edge import CountRequest, EdgeShard

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, embed
from ultimate_embedder.cli import main
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models import Encoder, TokenBatch
from ultimate_embedder.report.generated import json_schema, with_tables
from ultimate_embedder.summary import CollectionSummary, FusionSummary
from ultimate_embedder.types import VectorSpec

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "summary.schema.json"
MAX_TOKENS = 32
LONG = "This text has a lot more letters than the model is allowed to see. " * 3
RECORDS: list[Any] = [
    *({"text": f"text {number}", "metadata": {"chunk_id": f"chunk-{number}"}} for number in range(40)),
    {"text": LONG, "metadata": {"chunk_id": "long-a"}},
    {"text": LONG, "metadata": {"chunk_id": "long-b"}},
    {"text": "a duplicate id", "metadata": {"chunk_id": "chunk-0"}},
    {"text": "   "},
    {"no": "text"},
    17,
]
FOUND, REJECTED, TRUNCATED, DISTINCT = 46, 3, 2, 42


def run(chunks: Path, output: Path, **options: Any) -> RunSummary:
    return embed(chunks, output, models=[str(tiny_model("bert"))], max_tokens=MAX_TOKENS, quiet=True, **options)


def read_summary(output: Path) -> RunSummary:
    return RunSummary.model_validate_json((output / "summary.json").read_bytes())


def read_events(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "events.jsonl").read_text("utf-8").split("\n")[:-1]]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run that went well."""
    root = tmp_path_factory.mktemp("summary")
    (root / "chunks" / "docs").mkdir(parents=True)
    (root / "chunks" / "docs" / "a_chunks.json").write_text(json.dumps(RECORDS), encoding="utf-8")
    assert run(root / "chunks", root / "out").ok
    return root / "out"


# the contract


def test_a_summary_with_dimensions_by_name_is_still_read() -> None:
    read = FusionSummary.model_validate({"method": "named", "weights": {"a": 1.0}, "vectors": {"a": 64, "b": 48}})
    assert read.vectors == [VectorSpec("a", 64), VectorSpec("b", 48)]


def test_the_schema_in_the_docs_describes_every_field() -> None:
    documented, now = json.loads(SCHEMA.read_text("utf-8")), json.loads(json_schema())
    assert described_fields(documented) == described_fields(now), "run 'make generated'"


def described_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """Every field of every object: whether it is required, and what is said of it; not how pydantic writes its type."""
    return {
        f"{name}.{field}": (field in part.get("required", ()), described.get("description"))
        for name, part in {schema["title"]: schema, **schema["$defs"]}.items()
        for field, described in part["properties"].items()
    }


def test_the_summary_of_a_run_validates_and_is_what_embed_returned(write_chunks: WriteChunks, tmp_path: Path) -> None:
    returned = run(write_chunks(RECORDS), tmp_path / "out")
    assert read_summary(tmp_path / "out").model_dump(mode="json") == returned.model_dump(mode="json")


def test_the_summary_has_the_promised_names(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_bytes())
    assert summary["schema_version"] == 1
    assert summary["ensemble_mode"] == "disabled"
    (collection,) = summary["collections"]
    assert set(collection) >= {
        "collection",
        "status",
        "chunks",
        "rejected",
        "models",
        "passes",
        "exports",
        "target_qdrant_collection",
        "mitigations",
        "warnings",
        "seconds_by_stage",
    }
    assert set(collection["seconds_by_stage"]) >= {"load", "encode", "export"}
    assert all(seconds > 0 for seconds in collection["seconds_by_stage"].values())


def test_the_summary_tells_what_was_embedded_with_what(finished: Path) -> None:
    (collection,) = read_summary(finished).collections
    assert (collection.collection, collection.status, collection.error) == ("docs", "completed", None)
    assert collection.target_qdrant_collection == "docs__tiny-bert"
    assert [(model.model, model.source, model.dim, model.max_tokens) for model in collection.models] == [
        ("tiny-bert", "folder", 64, MAX_TOKENS)
    ]
    (single,) = collection.passes
    assert (single.texts, single.encoded_texts, single.stored_texts) == (DISTINCT, DISTINCT, 0)
    assert (single.devices, single.dtype, single.dim) == (["cpu"], "float32", 64)
    assert single.padded_tokens >= single.tokens > 0
    assert [export.kind for export in collection.exports] == ["npy", "parquet", "qdrant"]


def test_found_is_embedded_and_rejected(finished: Path) -> None:
    (collection,) = read_summary(finished).collections
    counts = collection.chunks
    assert (counts.found, counts.embedded, counts.rejected) == (FOUND, FOUND - REJECTED, REJECTED)
    assert [(record.position, record.reason) for record in collection.rejected] == [
        (43, "the text is only whitespace"),
        (44, "no text field (keys: no). Try --text-field no"),
        (45, "the record is a number, not an object or a string"),
    ]


def test_truncated_chunks_are_counted_also_when_they_share_a_text(finished: Path) -> None:
    (collection,) = read_summary(finished).collections
    assert collection.chunks.truncated == collection.passes[0].truncated == TRUNCATED


def test_a_duplicate_id_is_listed_with_its_new_name(finished: Path) -> None:
    (collection,) = read_summary(finished).collections
    (duplicate,) = collection.duplicate_ids
    assert (duplicate.chunk_id, duplicate.position, duplicate.renamed_to) == ("chunk-0", 42, "chunk-0@a_chunks.json#42")
    assert collection.chunks.duplicate_ids == 1


def test_the_events_begin_and_end_with_the_run(finished: Path) -> None:
    names = [event["event"] for event in read_events(finished)]
    assert (names[0], names[-1]) == ("RunStarted", "RunFinished")
    assert names.count("ChunkRejected") == REJECTED
    assert {"ChunksLoaded", "ModelLoaded", "BatchEncoded", "ExportWritten"} <= set(names)


# runs that end badly


def test_a_missing_model_is_in_the_summary_in_words(write_chunks: WriteChunks, tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    with pytest.raises(ModelError) as caught:
        embed(write_chunks(RECORDS), tmp_path / "out", models=["bge-m3"], offline=True, cache_dir=cache, quiet=True)
    summary = read_summary(tmp_path / "out")
    assert (summary.error, summary.ok) == (str(caught.value), False)
    assert "bge-m3" in str(caught.value)
    assert read_events(tmp_path / "out")[-1]["error"] == str(caught.value)


def test_a_collection_without_one_good_record_fails_in_words(write_chunks: WriteChunks, tmp_path: Path) -> None:
    summary = run(write_chunks([{"text": ""}, {"text": None}]), tmp_path / "out")
    assert not summary.ok
    (collection,) = read_summary(tmp_path / "out").collections
    assert collection.error == "all 2 records were rejected; 'rejected' says why"
    assert [record.reason for record in collection.rejected] == ["the text is empty", "the text is null, not a string"]


def test_an_interruption_is_in_the_summary_and_costs_only_what_was_under_way(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = write_chunks([f"{number} " + LONG for number in range(200)])
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "forward", failing_at_call(3, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run(chunks, tmp_path / "out")
    summary = read_summary(tmp_path / "out")
    assert (summary.error, summary.ok) == ("interrupted", False)
    (collection,) = summary.collections
    assert (collection.status, collection.error) == ("failed", "interrupted")
    encoded = collection.chunks.newly_encoded
    assert 0 < encoded < 200
    assert read_events(tmp_path / "out")[-1]["event"] == "RunFinished"
    (collection,) = run(chunks, tmp_path / "out").collections
    assert (collection.chunks.embedded, collection.chunks.newly_encoded) == (200, 200 - encoded)


def test_a_collection_that_fails_does_not_stop_the_others(write_chunks: WriteChunks, tmp_path: Path) -> None:
    write_chunks([{"text": ""}], "a-bad")
    write_chunks(RECORDS, "b-good")
    summary = run(write_chunks([{"text": " "}], "c-bad"), tmp_path / "out")
    assert not summary.ok
    statuses = {collection.collection: collection.status for collection in read_summary(tmp_path / "out").collections}
    assert statuses == {"a-bad": "failed", "b-good": "completed", "c-bad": "failed"}


def test_an_unexpected_error_is_reported_with_its_traceback_and_stops_one_collection(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_chunks(["one"], "a-bad")
    monkeypatch.setattr(Encoder, "forward", failing_at_call(1, ZeroDivisionError("what is this?")))
    bad, good = run(write_chunks(["two"], "b-good"), tmp_path / "out").collections
    assert (bad.status, bad.error) == ("failed", "ZeroDivisionError: what is this?")
    assert "Traceback" in bad.warnings[0]
    assert good.status == "completed"


def test_a_key_that_is_not_unicode_rejects_its_record_alone(write_chunks: WriteChunks, tmp_path: Path) -> None:
    (collection,) = run(write_chunks([{"\ud800": "no text"}, "fine"]), tmp_path / "out").collections
    assert (collection.status, collection.chunks.embedded, collection.chunks.rejected) == ("completed", 1, 1)


def test_a_collection_that_is_not_there_is_told(write_chunks: WriteChunks, tmp_path: Path) -> None:
    summary = run(write_chunks(["one"]), tmp_path / "out", collections=["docs", "dogs"])
    statuses = {collection.collection: collection.status for collection in summary.collections}
    assert statuses == {"docs": "completed", "dogs": "skipped_missing"}
    assert summary.warnings == ["collection dogs does not exist. Did you mean docs?"]
    assert not summary.ok


def test_a_wrong_option_writes_nothing(write_chunks: WriteChunks, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run(write_chunks(["one"]), tmp_path / "out", exports=["cvs"])
    assert not (tmp_path / "out").exists()


# the second run


def test_a_second_run_encodes_nothing_loads_no_model_and_counts_the_same(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = write_chunks(RECORDS)
    (first,) = run(chunks, tmp_path / "out").collections

    def must_not_load(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("ultimate_embedder.session.load_encoder", must_not_load)
    (second,) = run(chunks, tmp_path / "out").collections
    assert second.status == "completed"
    assert second.chunks == first.chunks.model_copy(update={"newly_encoded": 0, "longest_tokens": 0, "tokens_lost": 0})
    assert second.chunks.truncated == TRUNCATED
    assert (second.passes[0].batches, second.passes[0].stored_texts) == (0, DISTINCT)
    assert "ModelLoaded" not in [event["event"] for event in read_events(tmp_path / "out")]
    assert second.models == [first.models[0].model_copy(update={"seconds": second.models[0].seconds})]
    assert (second.models[0].max_tokens, second.models[0].document_prompt) == (MAX_TOKENS, "")


def test_a_changed_file_costs_its_changed_texts_and_loses_its_removed_ones(
    write_chunks: WriteChunks, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(write_chunks(RECORDS[:40]), out, exports="npy,parquet,jsonl,qdrant")
    kept = [{**RECORDS[0], "text": "changed"}, *RECORDS[1:39]]
    (collection,) = run(write_chunks(kept), out, exports="npy,parquet,jsonl,qdrant").collections
    assert (collection.chunks.newly_encoded, collection.chunks.embedded) == (1, 39)
    ids = [record["metadata"]["chunk_id"] for record in kept]
    table = pq.read_table(out / "docs" / "chunks.parquet", columns=["chunk_id", "text"])
    assert table["chunk_id"].to_pylist() == ids
    assert table["text"].to_pylist()[0] == "changed"
    lines = (out / "docs" / "points.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["payload"]["chunk_id"] for line in lines] == ids
    assert len(np.load(out / "docs" / "embeddings.npy")) == 39
    shard = EdgeShard.load(str(out / "docs" / "qdrant"))
    assert shard.count(CountRequest(exact=True)) == 39
    shard.close()


def test_another_token_limit_is_another_vector(write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks, model = write_chunks([LONG]), [str(tiny_model("bert"))]
    for limit, truncated in ((16, 1), (512, 0)):
        summary = embed(chunks, tmp_path / "out", models=model, max_tokens=limit, quiet=True)
        counts = summary.collections[0].chunks
        assert (counts.newly_encoded, counts.truncated) == (1, truncated)


# dry runs and the command line


def test_a_dry_run_writes_nothing_at_all(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks, _ = write_chunks(RECORDS), tiny_model("bert")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = tree(tmp_path)
    summary = run(chunks, tmp_path / "out", dry_run=True, summary=tmp_path / "summary.json")
    assert tree(tmp_path) == before
    assert (summary.ok, summary.dry_run) == (True, True)
    (collection,) = summary.collections
    assert (collection.status, collection.chunks.found, collection.chunks.rejected) == ("planned", FOUND, REJECTED)


def test_a_dry_run_leaves_an_earlier_output_as_it_is(write_chunks: WriteChunks, tmp_path: Path) -> None:
    run(write_chunks(["one"]), tmp_path / "out")
    before = tree(tmp_path / "out")
    run(write_chunks(["two"]), tmp_path / "out", dry_run=True)
    assert tree(tmp_path / "out") == before


def test_the_summary_goes_where_it_is_told(write_chunks: WriteChunks, tmp_path: Path) -> None:
    run(write_chunks(["one"]), tmp_path / "out", summary=tmp_path / "elsewhere" / "run.json")
    assert RunSummary.model_validate_json((tmp_path / "elsewhere" / "run.json").read_bytes()).ok
    copied = (tmp_path / "elsewhere" / "run.json").read_bytes()
    assert (tmp_path / "out" / "summary.json").read_bytes() == copied


@pytest.mark.parametrize(
    ("records", "options", "code"),
    [(["one"], [], 0), ([""], [], 1), (["one"], ["--models", "bge-m4"], 2), (["one"], ["--export", "cvs"], 2)],
    ids=["good", "all rejected", "no model", "wrong option"],
)
def test_the_command_prints_its_summary_as_json_and_exits_accordingly(
    write_chunks: WriteChunks,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    records: list[str],
    options: list[str],
    code: int,
) -> None:
    chunks, out = str(write_chunks(records)), str(tmp_path / "out")
    model = ["--models", str(tiny_model("bert"))]
    capsys.readouterr()
    assert main(["embed", chunks, "--output", out, "--quiet", "--json", *model, *options]) == code
    told = capsys.readouterr()
    if told.out:
        assert RunSummary.model_validate_json(told.out).ok == (code == 0)
    else:
        assert told.err.startswith("error: ")


def test_the_table_shows_counts_and_what_was_rejected(
    write_chunks: WriteChunks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks, out = str(write_chunks(RECORDS)), str(tmp_path / "out")
    assert main(["embed", chunks, "--output", out, "--quiet", "--models", str(tiny_model("bert"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:7] == ["collection", "status", "found", "embedded", "new", "rejected", "dims"]
    assert lines[1].split()[:7] == ["docs", "completed", str(FOUND), "43", str(DISTINCT), str(REJECTED), "64"]
    assert "docs rejected a_chunks.json record 43: the text is only whitespace" in lines
    assert "docs: 1 duplicate ids were renamed" in lines
    assert "docs: 'upload' writes to the Qdrant collection docs__tiny-bert" in lines
    assert "docs: 43 chunks, 42 distinct texts: 1 chunk shares the vector of an equal text" in lines
    assert lines[-3:] == [
        f"summary: {tmp_path / 'out' / 'summary.json'}",
        f"report: {tmp_path / 'out' / 'report.html'}",
        f"next: ultimate-embedder upload {tmp_path / 'out'} --url http://localhost:6333",
    ]


def test_the_table_says_where_texts_were_truncated_and_what_to_do(
    write_chunks: WriteChunks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = write_chunks(["short", "long " * 100])
    words = ["embed", chunks, "-o", tmp_path / "out", "-q", "--models", tiny_model("bert"), "--max-tokens", 16]
    assert main([*map(str, words), "--export", "npy"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "truncated" in line)
    assert line == (
        "docs: 1 chunk was truncated at 16 tokens (tiny-bert; the longest has 502): raise the limit, or use --overlong "
        "pool or split"
    )


def failing_at_call(number: int, error: BaseException) -> Callable[[Encoder, TokenBatch], torch.Tensor]:
    """An `Encoder.forward` that works, except for its n-th call."""
    forward, calls = Encoder.forward, 0

    def failing(self: Encoder, batch: TokenBatch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == number:
            raise error
        return forward(self, batch)

    return failing


def test_the_tables_of_mitigations_in_the_docs_are_those_of_the_code() -> None:
    page = (SCHEMA.parent / "memory.md").read_text("utf-8")
    assert with_tables(page) == page, "run 'make generated'"
    assert "| `oom_bisect` |" in page
    assert "| `fp32_rerun` |" in page


def test_a_summary_with_the_earlier_name_of_duplicate_ids_is_still_read() -> None:
    renamed = {"chunk_id": "x", "file": "a_chunks.json", "position": 1, "renamed_to": "x@a_chunks.json#1"}
    read = CollectionSummary.model_validate(
        {"collection": "docs", "chunks": {"repeated_ids": 1}, "repeated_ids": [renamed]}
    )
    assert (read.chunks.duplicate_ids, read.duplicate_ids[0].renamed_to) == (1, "x@a_chunks.json#1")
    assert "repeated_ids" not in read.model_dump_json()
