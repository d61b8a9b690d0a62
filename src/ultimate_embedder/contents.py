"""What is in an output, for Python: vectors, chunks and points of each collection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ultimate_embedder.api import evaluate, run_search, upload
from ultimate_embedder.config import with_options_of
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import (
    PointsFile,
    UploadReport,
    read_export_journal,
    read_origin,
    read_vectors,
    row_vector,
)
from ultimate_embedder.find import Hits, QueryModels, SearchConfig, make_search_config
from ultimate_embedder.markup import html_table
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.output import open_output as open_folder
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.types import UNNAMED, VectorSpec

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from ultimate_embedder.find import Evaluation

COLLECTION_HEADINGS = ("collection", "points", "dims", "models", "exports")
READ_ROWS = 1024
JSON_COLUMNS = ("metadata", "extra")
FRAME_COLUMNS = ("chunk_id", "text", "metadata", "extra", "file", "position", "point_id")
AGAIN = "Run embed again, with --export npy,parquet: vectors that are stored are not computed again."


class Point(NamedTuple):
    """A point as Qdrant has it; `vector` is a dictionary by name if there are several, '' for an unnamed dense one.

    A sparse vector is a dictionary of `indices` and `values`.
    """

    id: str
    vector: Any
    payload: dict[str, Any]


@dataclass(frozen=True)
class _Facts:
    """What is known of the points of a collection without reading them."""

    points: int
    vectors: tuple[VectorSpec, ...]
    models: tuple[str, ...]
    exports: tuple[str, ...]

    @property
    def dims(self) -> str:
        return ", ".join(map(str, self.vectors)) or "-"

    @property
    def dense(self) -> tuple[VectorSpec, ...]:
        return tuple(spec for spec in self.vectors if not spec.is_sparse)

    @property
    def sparse(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.vectors if spec.is_sparse)


@dataclass(frozen=True)
class _Kept:
    """Models that searches have loaded, for the next ones."""

    models: dict[Any, QueryModels] = field(default_factory=dict)

    def search(self, output: Path, question: str, options: dict[str, Any]) -> Hits:
        config = search(output, question, **options)
        key = (config.place.hub, config.place.model_folders)
        if key not in self.models:
            summary = open_folder(output).try_summary()[0]
            self.models[key] = QueryModels(summary, config.place.hub, config.place.model_folders)
        return run_search(config, self.models[key])


@with_options_of(make_search_config)
def search(config: SearchConfig) -> SearchConfig:
    """The options of a search; the name is what errors about them begin with."""
    return config


@dataclass(frozen=True, repr=False)
class OpenedCollection(CollectionOutput):
    """A collection of an output: its vectors, chunks and points."""

    kept: _Kept = field(default_factory=_Kept, compare=False)

    def __len__(self) -> int:
        """The number of points."""
        return self._facts().points

    def __bool__(self) -> bool:
        return True

    @property
    def models(self) -> list[str]:
        """The models that made the vectors, also sparse ones."""
        return list(self._facts().models)

    @property
    def sparse(self) -> list[str]:
        """The names of the sparse vectors."""
        return list(self._facts().sparse)

    def sparse_vectors(self, name: str | None = None) -> SparseVectors:
        """The sparse vectors of this name, in the order of `chunks()`: `indptr`, `indices` and `values` (CSR).

        Read from the parquet export. The name may be left out if there is only one.
        """
        names = self.sparse
        if not names:
            raise UsageError(f"{self.name} has no sparse vectors. Run embed again with --sparse bm25, for example.")
        if name is None and len(names) > 1:
            raise UsageError(
                f"{self.name} has sparse vectors {', '.join(names)}. Name one: sparse_vectors({names[0]!r})."
            )
        if name is not None and name not in names:
            raise UsageError(f"{self.name} has no sparse vectors {name!r}. It has {', '.join(names)}.")
        return self._open_points().read_sparse(name or names[0], READ_ROWS)

    def vectors(self, model: str | None = None, *, check: bool = False) -> np.ndarray:
        """The dense vectors: float32, a row for each chunk in the order of `chunks()`; of named ones, those of `model`.

        Memory-mapped from the npy export, if that is there, of its recorded size and of the same points as
        `chunks()`; else read from the parquet export. `check` compares the checksum of the npy export, too.
        """
        facts = self._facts()
        return read_vectors(self, self._choose(facts, model), facts.points, check=check)

    def chunks(self) -> pa.Table:
        """Ids, texts, files and metadata (JSON) of all chunks, as an Arrow table."""
        return self._open_points().read_chunks()

    def to_pandas(self) -> pd.DataFrame:
        """The same as a pandas data frame, with metadata as dictionaries."""
        try:
            import pandas  # noqa: F401 - Arrow needs it
        except ImportError:
            raise UsageError("to_pandas() needs pandas: pip install pandas. chunks() gives an Arrow table.") from None
        table = self.chunks()
        frame = table.to_pandas()
        for column in JSON_COLUMNS:  # from the table: in a frame missing texts are NaN, or None, depending on pandas
            frame[column] = [None if value is None else json.loads(value) for value in table[column].to_pylist()]
        return frame[[name for name in FRAME_COLUMNS if name != "extra" or any(frame["extra"])]]

    def points(self) -> Iterator[Point]:
        """Yield the points as `upload` sends them: id, vector and payload. They are read a block at a time."""
        for ids, vectors, payloads in self._open_points().batches(READ_ROWS):
            for row, (point_id, payload) in enumerate(zip(ids, payloads, strict=True)):
                yield Point(point_id, row_vector(vectors, row), payload)

    def search(self, question: str, **options: Any) -> Hits:
        """The chunks that answer a question best; `options` are those of `ultimate_embedder.search`."""
        return self.kept.search(self.folder.parent, question, {"collection": [self.name], **options})

    def upload(self, url: str, **options: Any) -> list[UploadReport]:
        """Send the collection to the Qdrant server at `url`; `options` are those of `ultimate_embedder.upload`."""
        return upload(self.folder, url, **options)

    def evaluate(self, **options: Any) -> Evaluation:
        """Measure what each way to search the collection is worth; `options` are those of `evaluate`."""
        return evaluate(self.folder.parent, collection=self.name, **options)

    def __repr__(self) -> str:
        facts = self._facts()
        return f"<{self.name}: {facts.points} points, {facts.dims} dims, in {self.folder}>"

    def _repr_html_(self) -> str:
        return html_table(f"Collection {self.name}", COLLECTION_HEADINGS, [self._cells()], [str(self.folder)])

    def _cells(self) -> tuple[object, ...]:
        facts = self._facts()
        return self.name, facts.points, facts.dims, ", ".join(facts.models) or "-", ", ".join(facts.exports) or "-"

    def _facts(self) -> _Facts:
        """From the journal, of the parquet export if that is there; else from that file itself."""
        journal = read_export_journal(self.folder)
        noted = journal.get("parquet") or next(iter(journal.values()), {})
        kinds = tuple(journal)
        if "rows" in noted and "vectors" in noted:
            specs = tuple(VectorSpec(**each) for each in noted["vectors"])
            return _Facts(noted["rows"], specs, _models(noted.get("origin")), kinds)
        if not self.points_file.exists():
            return _Facts(0, (), (), kinds)
        file = PointsFile.open(self.points_file)
        return _Facts(file.points, file.vectors, _models(file.origin), kinds)

    def _choose(self, facts: _Facts, model: str | None) -> VectorSpec:
        if not facts.vectors:
            raise UsageError(f"{self.folder} has no exported vectors. {AGAIN}")
        by_name = {spec.name: spec for spec in facts.dense}
        if model in facts.sparse:
            raise UsageError(f"{model} has sparse vectors: call sparse_vectors({model!r}).")
        made_by = tuple(name for name in facts.models if name not in facts.sparse)
        if UNNAMED in by_name and (model is None or made_by == (model,)):
            return by_name[UNNAMED]
        if UNNAMED in by_name:
            made = " and ".join(made_by) or "a model that is not known"
            raise UsageError(f"{self.name} has one vector per chunk, made by {made}: call vectors() without a name.")
        names = ", ".join(by_name)
        if model is None and len(by_name) > 1:
            raise UsageError(f"{self.name} has vectors of {names}. Name a model: vectors({facts.dense[0].name!r}).")
        if model is not None and model not in by_name:
            raise UsageError(f"{self.name} has no vectors of {model!r}. Its models: {names}.")
        return by_name[model] if model is not None else facts.dense[0]

    def _open_points(self) -> PointsFile:
        if not self.points_file.exists():
            raise UsageError(f"{self.folder} has no parquet export, which the chunks are read from. {AGAIN}")
        return PointsFile.open(self.points_file)


@dataclass(frozen=True, repr=False)
class OpenedOutput(Output):
    """An output of `embed`, opened for reading: `.summary`, `.collections`, and each collection by its name."""

    kept: _Kept = field(default_factory=_Kept, compare=False)

    def __getitem__(self, name: str) -> OpenedCollection:
        return OpenedCollection(super().__getitem__(name).folder, self.kept)

    def __iter__(self) -> Iterator[OpenedCollection]:
        return (OpenedCollection(each.folder, self.kept) for each in super().__iter__())

    def __len__(self) -> int:
        """The number of collections."""
        return len(self.collections)

    def __bool__(self) -> bool:
        return True

    def search(self, question: str, **options: Any) -> Hits:
        """The chunks of all collections that answer a question best; they must have vectors of the same models.

        `options` are those of `ultimate_embedder.search`: `collection=["docs"]`, `top=3`, `filter={"page": 3}`. Models
        stay loaded for the next question.
        """
        return self.kept.search(self.folder, question, options)

    def upload(self, url: str, **options: Any) -> list[UploadReport]:
        """Send every collection to the Qdrant server at `url`; `options` are those of `ultimate_embedder.upload`."""
        return upload(self.folder, url, **options)

    def evaluate(self, **options: Any) -> Evaluation:
        """Measure what each way to search a collection is worth; `options` are those of `evaluate`."""
        return evaluate(self.folder, **options)

    def __repr__(self) -> str:
        return f"<Output {self.folder}: {', '.join(self.collections) or 'no collections'}>"

    def _repr_html_(self) -> str:
        return html_table(f"Output {self.folder}", COLLECTION_HEADINGS, [each._cells() for each in self])


def open_output(folder: str | Path) -> OpenedOutput:
    """Open the output of an earlier run for reading; raises `UsageError` if the folder is not an output."""
    if not isinstance(folder, str | Path):
        raise UsageError(f"open_output({folder!r}): give the folder of an output, as text or as a path.")
    return OpenedOutput(open_folder(folder).folder)


def _models(origin: Any) -> tuple[str, ...]:
    found = read_origin(origin)
    return tuple(str(each.get("model")) for each in found.passes) if found is not None else ()
