"""What is under way beside the passes: reading, downloading, loading, exporting, building a graph, uploading."""

from __future__ import annotations

from ultimate_embedder import events
from ultimate_embedder.report.live.activities import Activities
from ultimate_embedder.report.live.recent import amount, whole
from ultimate_embedder.report.live.sentences import shown


class UnderWay:
    """Folds the events of everything that takes long and is no pass."""

    def __init__(self) -> None:
        self._activities = Activities()
        self.rows = self._activities.rows

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        match event:
            case events.RunStarted() | events.CollectionStarted() | events.ChunksRead() | events.ChunksLoaded():
                self._reading(event)
            case events.ModelFetchStarted() | events.ModelBytesFetched() | events.ModelResolved():
                self._downloading(event)
            case events.ModelLoadStarted():
                self._activities.begin(("loading", None, event.model), f"loading {shown(event.model)}", event.timestamp)
            case events.ModelLoaded():
                self._activities.end(("loading", None, event.model))
            case events.ExportStarted() | events.PointsExported() | events.GraphBuilding() | events.ExportWritten():
                self._exporting(event)
            case events.UploadStarted() | events.BatchUploaded() | events.UploadFinished():
                self._uploading(event)
            case events.CollectionFinished():
                self._activities.end_all(collection=event.collection)
            case events.RunFinished():
                self._activities.end_all()
            case _:
                pass

    def _reading(
        self, event: events.RunStarted | events.CollectionStarted | events.ChunksRead | events.ChunksLoaded
    ) -> None:
        key = ("reading", event.collection, "")
        match event:
            case events.RunStarted():
                words = "looking for chunks, models and devices"
                self._activities.begin(("starting", None, ""), words, event.timestamp)
            case events.CollectionStarted():
                self._activities.end_all("starting")
                self._activities.begin(key, f"{shown(event.collection)}: reading chunks", event.timestamp, "chunks")
            case events.ChunksRead():
                self._activities.move(key, event.timestamp, done=event.records)
            case events.ChunksLoaded():
                self._activities.end(key)

    def _downloading(self, event: events.ModelFetchStarted | events.ModelBytesFetched | events.ModelResolved) -> None:
        key = ("downloading", None, event.model)
        match event:
            case events.ModelFetchStarted():
                words = f"downloading {shown(event.model)}"
                self._activities.begin(key, words, event.timestamp, "bytes", whole(event.size_bytes))
            case events.ModelBytesFetched():
                self._activities.move(key, event.timestamp, more=event.size_bytes)
            case events.ModelResolved():
                self._activities.end(key)

    def _exporting(
        self, event: events.ExportStarted | events.PointsExported | events.GraphBuilding | events.ExportWritten
    ) -> None:
        kind = event.exported.kind if isinstance(event, events.ExportWritten) else event.kind
        key, graph, name = ("exporting", event.collection, kind), ("graph", event.collection, kind), event.collection
        match event:
            case events.ExportStarted():
                self._activities.begin(key, f"{shown(name)}: writing {shown(kind)}", event.timestamp, "points")
            case events.PointsExported():
                self._activities.move(key, event.timestamp, done=event.points, total=event.total)
            case events.GraphBuilding() if not self._activities.has(graph):
                self._activities.end(key)
                words = f"{shown(name)}: building the search graph of {whole(event.points):,} points"
                self._activities.begin(graph, words, event.timestamp - amount(event.seconds))
            case events.ExportWritten():
                self._activities.end(key)
                self._activities.end(graph)
            case _:  # the graph is still being built
                pass

    def _uploading(self, event: events.UploadStarted | events.BatchUploaded | events.UploadFinished) -> None:
        key = ("uploading", event.collection, event.target)
        match event:
            case events.UploadStarted():
                words, points = f"{shown(event.collection)} → {shown(event.target)}", whole(event.points)
                self._activities.begin(key, words, event.timestamp, "points", points, whole(event.uploaded))
            case events.BatchUploaded():
                self._activities.move(key, event.timestamp, more=event.points)
            case events.UploadFinished():
                self._activities.end(key)
