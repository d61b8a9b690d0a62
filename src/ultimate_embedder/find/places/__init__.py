"""Where points are searched: a Qdrant Edge shard, a Qdrant server, or vectors in files."""

from ultimate_embedder.find.places.base import Found, Place, QueryLeg
from ultimate_embedder.find.places.edge import EdgePlace, open_edge
from ultimate_embedder.find.places.exact import ExactPlace, open_exact
from ultimate_embedder.find.places.merged import MergedPlace

__all__ = [
    "EdgePlace",
    "ExactPlace",
    "Found",
    "MergedPlace",
    "Place",
    "QueryLeg",
    "open_edge",
    "open_exact",
]
