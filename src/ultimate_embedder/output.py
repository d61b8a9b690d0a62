"""The output folder: names and paths of everything in it, and reading and writing its summary.

summary.json  events.jsonl  report.html  plan.json  evaluation.json  .ultimate-embedder.lock  .ultimate-embedder.held
COLLECTION/
  embeddings.npy | embeddings/MODEL.npy   chunks.parquet   points.jsonl   qdrant/   upload.json
  store/exports.json
  store/FINGERPRINT/pass.json  ledger.jsonl  agreement.json  shard-00000.npy  |  overflow.json
  store/FINGERPRINT/pass.json  ledger.jsonl  shard-00000.arrow      of a pass that makes sparse vectors
  queries/FINGERPRINT/pass.json  ledger.jsonl  shard-00000.npy
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.files import (
    copy_folder,
    delete,
    first_oddity,
    is_temporary,
    remove_leftovers,
    safe_name,
    scratch_copy,
    scratch_links,
    write_json,
)
from ultimate_embedder.names import name_problem, same_name
from ultimate_embedder.state import Damaged, read_content, read_finite, read_integer

if TYPE_CHECKING:
    from pydantic import ValidationError
    from qdrant_edge import EdgeShard

    from ultimate_embedder.summary import RunSummary

SUMMARY_NAME = "summary.json"
V5_SUMMARY_NAME = "embedding_summary.json"
EVENTS_NAME = "events.jsonl"
REPORT_NAME = "report.html"
EVALUATION_NAME = "evaluation.json"
PLAN_NAME = "plan.json"
LOCK_NAME = ".ultimate-embedder.lock"
HELD_NAME = ".ultimate-embedder.held"
STATS_NAME = "processing_stats.json"
CHUNK_TABLE_NAME = ".chunks.arrow.partial"
SEGMENT_TABLE_NAME = ".segments.arrow.partial"
STORE_NAME = "store"
QUERIES_NAME = "queries"
EXPORT_JOURNAL_NAME = "exports.json"
EMBEDDINGS_FILE = "embeddings.npy"
EMBEDDINGS_FOLDER = "embeddings"
POINTS_FILE = "chunks.parquet"
JSONL_FILE = "points.jsonl"
QDRANT_FOLDER = "qdrant"
UPLOAD_STATE_NAME = "upload.json"
PASS_NAME = "pass.json"
LEDGER_NAME = "ledger.jsonl"
AGREEMENT_NAME = "agreement.json"
OVERFLOW_NAME = "overflow.json"
UNITS_NAME = "units"
TOKENS_PREFIX = "tokens-"
CHOICE_PREFIX = "choice-"
RESERVED_NAMES = (
    SUMMARY_NAME,
    V5_SUMMARY_NAME,
    EVENTS_NAME,
    REPORT_NAME,
    EVALUATION_NAME,
    PLAN_NAME,
    LOCK_NAME,
    HELD_NAME,
)
"""Files of an output: no collection can have these names."""
NOT_EXPORTS = (STORE_NAME, QUERIES_NAME, UPLOAD_STATE_NAME, STATS_NAME, CHUNK_TABLE_NAME, SEGMENT_TABLE_NAME)
"""What is in the folder of a collection and is not an export."""


def collection_name_problem(name: str) -> str | None:
    """Why a collection cannot have this name, to follow it in a sentence; None if it can."""
    return name_problem(name, RESERVED_NAMES)


def export_name_problem(name: object) -> str | None:
    """The same for an export."""
    return name_problem(name, NOT_EXPORTS) if isinstance(name, str) else "is not text"


def summary_problem(output: Path, summary: Path, collections: Iterable[str] = ()) -> str | None:
    """Why a copy of the summary cannot be written to this path, to follow it in a sentence; None if it can."""
    if not summary.resolve().is_relative_to(output.resolve()):
        return None  # elsewhere it may be anything
    first, *rest = summary.resolve().relative_to(output.resolve()).parts or ("",)
    if same_name(first) in {same_name(name) for name in collections}:
        return f"is the folder of the collection {first}, or a file in it"
    own = (EVENTS_NAME, REPORT_NAME, EVALUATION_NAME, PLAN_NAME, LOCK_NAME, HELD_NAME)
    return None if rest else name_problem(first, own)


def link_target(path: Path) -> str | None:
    """What a link points to; None if it is not a link."""
    return str(path.readlink()) if path.is_symlink() else None


def replaced_link(path: Path) -> str | None:
    """Say that a link is about to be replaced by a file or folder of an output; None if it is not a link."""
    target = link_target(path)
    return f"{path} was a link to {target}. Links are replaced, not followed." if target else None


@dataclass(frozen=True)
class PassOutput:
    """The folder of one pass in the store of a collection."""

    folder: Path

    @property
    def fingerprint(self) -> str:
        """Hash of everything that affects the vectors of the pass."""
        return self.folder.name

    @property
    def description(self) -> Path:
        """Metadata of the pass: identity, dimension, encoder."""
        return self.folder / PASS_NAME

    @property
    def ledger(self) -> Path:
        """The list of complete shards, with checksums."""
        return self.folder / LEDGER_NAME

    @property
    def agreement(self) -> Path:
        """Cosine similarity of low-precision vectors to fp32."""
        return self.folder / AGREEMENT_NAME

    @property
    def overflow(self) -> Path:
        """That fp16 was too narrow, and the pass is computed in fp32."""
        return self.folder / OVERFLOW_NAME

    @property
    def units(self) -> Path:
        """Where the nodes of a cluster write vectors, if the output is on a file system that they share."""
        return self.folder / UNITS_NAME

    def unit(self, unit_id: str, suffix: str) -> Path:
        """The vectors of a unit of texts, before they are a shard."""
        return self.units / f"{unit_id}{suffix}"

    def unit_commit(self, unit_id: str) -> Path:
        """Checksum of such a file: with it the unit is complete."""
        return self.units / f"{unit_id}.json"

    def shard(self, number: int, suffix: str = ".npy") -> Path:
        """A file of vectors of the pass, with the keys of their texts; sparse vectors are in `.arrow` files."""
        return self.folder / f"shard-{number:05d}{suffix}"


def choice_file(store: Path, fingerprint: str) -> Path:
    """What `--min-cosine` has chosen for a pass."""
    return store / f"{CHOICE_PREFIX}{fingerprint}.json"


def find_passes(store: Path) -> list[PassOutput]:
    """Every pass that has been started in the store of a collection."""
    folders = {path.parent for name in (PASS_NAME, LEDGER_NAME) for path in store.glob(f"*/{name}")}
    found = [PassOutput(folder) for folder in sorted(folders)]
    # what is left of a pass in fp16 that was given up has a ledger at most
    return [each for each in found if os.path.lexists(each.description) or not each.overflow.exists()]


@dataclass(frozen=True)
class CollectionOutput:
    """The folder of one collection in an output."""

    folder: Path

    @property
    def name(self) -> str:
        """Name of the collection."""
        return self.folder.name

    @property
    def store(self) -> Path:
        """Folder with the vectors of all passes."""
        return self.folder / STORE_NAME

    @property
    def passes(self) -> list[PassOutput]:
        """Every pass that has been started."""
        return find_passes(self.store)

    @property
    def queries(self) -> Path:
        """Folder with vectors of queries, a folder for each model, that `evaluate` has encoded."""
        return self.folder / QUERIES_NAME

    @property
    def query_passes(self) -> list[PassOutput]:
        """A folder for each model that has encoded queries."""
        return find_passes(self.queries)

    @property
    def export_journal(self) -> Path:
        """Which chunks and vectors the exports were made from."""
        return self.store / EXPORT_JOURNAL_NAME

    @property
    def embeddings(self) -> Path:
        """The npy export, if points have one vector."""
        return self.folder / EMBEDDINGS_FILE

    def embeddings_of(self, model: str) -> Path:
        """The npy export of one model, if points have a vector per model."""
        return self.folder / EMBEDDINGS_FOLDER / embeddings_name(model)

    @property
    def points_file(self) -> Path:
        """The parquet export, which `upload` reads."""
        return self.folder / POINTS_FILE

    @property
    def jsonl(self) -> Path:
        """The JSON Lines export."""
        return self.folder / JSONL_FILE

    @property
    def qdrant(self) -> Path:
        """The Qdrant shard."""
        return self.folder / QDRANT_FOLDER

    def copy_qdrant(self, target: str | Path) -> Path:
        """Copy the Qdrant shard to a new folder, where Edge can open it: it writes to the files of a shard on loading.

        For a shard on a read-only disk, such as the inputs of a Kaggle notebook.
        """
        if not self.qdrant.is_dir():
            raise UsageError(f"{self.folder} has no Qdrant shard. Run embed again with --export qdrant.")
        if Path(target).exists():
            raise UsageError(f"{target} exists. Name a folder that does not.")
        if odd := first_oddity(self.qdrant):
            raise UsageError(f"{odd} is a link, a pipe or a device, which no Qdrant shard has. Remove it.")
        copy_folder(self.qdrant, Path(target))
        return Path(target)

    @contextlib.contextmanager
    def open_shard(self, *, to_read: bool = False) -> Iterator[EdgeShard]:
        """Open the Qdrant shard for the block: a copy of it, so that whatever is done there leaves the output as it is.

        The copy is in the system's temporary folder (`TMPDIR`), and is deleted afterwards. With `to_read`, for who only
        searches, its large files are links to those of the output, where these can be written to: it opens at once.
        """
        from qdrant_edge import EdgeShard

        if not self.qdrant.is_dir():
            raise UsageError(f"{self.folder} has no Qdrant shard. Run embed again with --export qdrant.")
        if odd := first_oddity(self.qdrant):
            raise UsageError(f"{odd} is a link, a pipe or a device, which no Qdrant shard has. Remove it.")
        with (scratch_links if to_read else scratch_copy)(self.qdrant) as copy:
            shard = EdgeShard.load(str(copy))
            try:
                yield shard
            finally:
                shard.close()

    @property
    def upload_state(self) -> Path:
        """How far an interrupted upload got."""
        return self.folder / UPLOAD_STATE_NAME

    @property
    def chunk_table(self) -> Path:
        """The chunks, during a run."""
        return self.folder / CHUNK_TABLE_NAME

    @property
    def segment_table(self) -> Path:
        """The chunks, during a run, if some were split."""
        return self.folder / SEGMENT_TABLE_NAME

    def refuse_links(self) -> None:
        """Raise `OutputError` if something would be written through a link: it may lead out of the output."""
        self._refuse_links(self.store)

    def refuse_links_in_queries(self) -> None:
        """The same for what is written into the folder of queries."""
        self._refuse_links(self.queries)

    def _refuse_links(self, folder: Path) -> None:
        # the journal of the exports is replaced as a whole, and checked when it is read
        inside = (path for path in folder.glob("*") if path != self.export_journal)
        for path in (self.folder, folder, *inside, *folder.glob(f"*/{LEDGER_NAME}")):
            if target := link_target(path):
                raise OutputError(
                    f"{path} is a link to {target}, and nothing is written through links. Remove the link, or put what "
                    "it points to in its place."
                )

    def tokens(self, fingerprint: str) -> Path:
        """Token ids that passes share, during a run."""
        return self.store / f"{TOKENS_PREFIX}{fingerprint}"

    @property
    def left_tokens(self) -> list[Path]:
        """Token ids that a run which was stopped has left."""
        return sorted(self.store.glob(f"{TOKENS_PREFIX}*"))

    @property
    def stats(self) -> Path:
        """Statistics of a collection, written by the V5 script."""
        return self.folder / STATS_NAME


def embeddings_name(model: str) -> str:
    """The name of the file with the vectors of one model."""
    name = f"{safe_name(model)}.npy"
    if problem := name_problem(name):
        raise UsageError(f"the vectors of the model {model} cannot be written to {name}, which {problem}. Rename it.")
    return name


@dataclass(frozen=True)
class Output:
    """An output folder."""

    folder: Path

    @property
    def summary_path(self) -> Path:
        """The summary of the last run."""
        return self.folder / SUMMARY_NAME

    @property
    def v5_summary_path(self) -> Path:
        """The summary of an output that the V5 script of an earlier version wrote."""
        return self.folder / V5_SUMMARY_NAME

    @property
    def events_path(self) -> Path:
        """The event log of the last run."""
        return self.folder / EVENTS_NAME

    @property
    def report_path(self) -> Path:
        """The page about the last run."""
        return self.folder / REPORT_NAME

    @property
    def evaluation_path(self) -> Path:
        """What `evaluate` has measured last, for each collection."""
        return self.folder / EVALUATION_NAME

    @property
    def plan_path(self) -> Path:
        """What the next run will take, as `plan` has found it."""
        return self.folder / PLAN_NAME

    @property
    def has_plan(self) -> bool:
        """Whether there is anything where a plan is stored, also if it cannot be read."""
        return os.path.lexists(self.plan_path)

    @property
    def lock_path(self) -> Path:
        """Locked by the process that writes to the output."""
        return self.folder / LOCK_NAME

    def stats_path(self, prefix: str) -> Path:
        """Statistics of the last run, written by the V4 class."""
        name = f"{prefix}_{STATS_NAME}"
        if problem := name_problem(name):
            raise UsageError(f"output_prefix {prefix!r}: {name!r} {problem}. Give a word without separators.")
        return self.folder / name

    @property
    def held_path(self) -> Path:
        """Who writes to the output, on a file system without locks."""
        return self.folder / HELD_NAME

    def replaced_links(self) -> list[str]:
        """Say which links a run is about to replace."""
        files = (self.summary_path, self.v5_summary_path, self.events_path, self.report_path)
        return [message for path in files if (message := replaced_link(path))]

    @property
    def collections(self) -> list[str]:
        """Names of the collections that have vectors or exports here."""
        found = {path.parent.name for name in (STORE_NAME, POINTS_FILE) for path in self.folder.glob(f"*/{name}")}
        return sorted(found)

    def collection(self, name: str) -> CollectionOutput:
        """The folder of a collection, which may not exist; raises `UsageError` if it cannot have this name."""
        if problem := collection_name_problem(name):
            raise UsageError(f"the name of the collection {name!r} {problem}. Rename it.")
        return CollectionOutput(self.folder / name)

    def __getitem__(self, name: str) -> CollectionOutput:
        if name not in self.collections:
            known = ", ".join(self.collections) or "none"
            raise UsageError(f"{self.folder} has no collection {name!r}. Its collections: {known}.")
        return CollectionOutput(self.folder / name)

    def __iter__(self) -> Iterator[CollectionOutput]:
        return (CollectionOutput(self.folder / name) for name in self.collections)

    def files(self) -> Iterator[Path]:
        """Every file that is worth a copy, by its path in the folder: no links, locks, or what only a run needs."""
        for path in sorted(self.folder.rglob("*")):
            inside = path.relative_to(self.folder)
            passing = any(is_temporary(part) or part.startswith(TOKENS_PREFIX) for part in inside.parts)
            locks = (self.lock_path, self.held_path)
            if path.is_file() and not path.is_symlink() and path not in locks and not passing:
                yield inside

    def remove_leftovers(self) -> None:
        """Delete what killed runs have left behind, in every folder that a run writes to; needs the output's lock."""
        collections = [path for path in self.folder.glob("*") if path.is_dir()]
        stores = [folder / name for folder in collections for name in (STORE_NAME, QUERIES_NAME)]
        inside = [path for store in stores for path in store.glob("*") if path.is_dir()]
        for folder in (
            self.folder,
            *collections,
            *stores,
            *(each / EMBEDDINGS_FOLDER for each in collections),
            *inside,
        ):
            remove_leftovers(folder, unlocked=UPLOAD_STATE_NAME)
        for folder in inside:
            if folder.name.startswith(TOKENS_PREFIX):  # as earlier versions called them
                for path in folder.glob(f"{TOKENS_PREFIX}*.partial"):
                    path.unlink(missing_ok=True)

    @property
    def exists(self) -> bool:
        """Whether the folder is an output; also that of a killed run, or a copy without summary."""
        known = (self.summary_path, self.v5_summary_path, self.lock_path)
        return any(path.exists() for path in known) or bool(self.collections)

    @property
    def summary(self) -> RunSummary | None:
        """The summary of the last run, read from disk; None if that run was killed."""
        return self.read_summary()

    def read_summary(self) -> RunSummary | None:
        """Read and validate the summary of the last run; None if that run was killed."""
        # imported here: most users of this module need only the names
        from pydantic import ValidationError

        for path in (self.summary_path, self.v5_summary_path):
            content = read_content(path)
            if content is None:
                continue
            if isinstance(content, Damaged):
                raise UsageError(
                    f"{content}. Change its permissions, or delete it and run the same embed command again."
                )
            try:
                return _parse_summary(content)
            except ValueError as error:
                problem = _first_problem(error) if isinstance(error, ValidationError) else str(error)
                raise UsageError(
                    f"{path} is not a summary of this version of ultimate-embedder, or is damaged ({problem}). "
                    "Run the same embed command again to rewrite it, or delete the file."
                ) from error
        return None

    def try_summary(self) -> tuple[RunSummary | None, str | None]:
        """The summary of the last run, and what is wrong with it if it cannot be read."""
        try:
            return self.read_summary(), None
        except UsageError as error:
            return None, str(error)

    def write_summary(self, summary: RunSummary, copy: Path | None = None) -> None:
        """Write the summary into the output, and a copy to `copy`; tries both before it raises."""
        _write_summary(self._summary_paths(copy), summary)

    def delete_summary(self, copy: Path | None = None) -> None:
        """Delete the summary and the report of an earlier run, so that they are not taken for those of a killed run."""
        for path in (*self._summary_paths(copy), self.v5_summary_path):
            with contextlib.suppress(OSError):  # a read-only folder is reported elsewhere
                delete(path)
        with contextlib.suppress(OSError):  # earlier versions allowed a collection of this name: it is kept
            self.report_path.unlink(missing_ok=True)

    def _summary_paths(self, copy: Path | None) -> list[Path]:
        return list(dict.fromkeys([self.summary_path, *([copy] if copy is not None else [])]))


def _parse_summary(content: bytes) -> RunSummary:
    """Raises `ValueError`, of which `ValidationError` is one."""
    from ultimate_embedder.summary import RunSummary

    with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError, RecursionError):  # these are found below
        json.loads(content, parse_int=read_integer, parse_float=read_finite, parse_constant=read_finite)
    return RunSummary.model_validate_json(content)


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def open_output(folder: str | Path) -> Output:
    """Open the output of an earlier run for reading; raises `UsageError` if the folder is not an output."""
    output = Output(Path(folder))
    if not output.exists:
        raise UsageError(
            f"{output.folder} is not an output of ultimate-embedder: it has no {SUMMARY_NAME} and no vectors. "
            "Give the --output of an earlier embed."
        )
    return output


def write_summary_copy(path: Path, summary: RunSummary) -> None:
    """Write a summary outside of any output, or for a run that could not lock its output folder."""
    _write_summary([path], summary)


def _write_summary(paths: list[Path], summary: RunSummary) -> None:
    problems = []
    for path in paths:
        try:
            write_json(path, summary.model_dump(mode="json"))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
    if problems:
        failures = [f" {each.collection} failed: {each.error}" for each in summary.collections if each.error]
        raise OutputError(f"the summary cannot be written to {'; '.join(problems)}.{''.join(failures)}")
