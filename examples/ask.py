"""Search an output of `embed`, with the Qdrant shard that it exported.

python examples/ask.py OUT "How do I send the vectors to a Qdrant server?"
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from qdrant_edge import EdgeShard, Query, QueryRequest

from ultimate_embedder import open_output
from ultimate_embedder.config import HubAccess
from ultimate_embedder.find import open_query_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("question")
    parser.add_argument("--top", type=int, default=3)
    options = parser.parse_args()

    output = open_output(options.output)
    print(f"\n{options.question}")
    for collection in output.collections:
        encoder = open_query_encoder(output, collection, HubAccess(offline=True))
        vectors = encoder.encode_query(options.question)
        name = next(iter(vectors))  # of several named vectors, the first model's
        vector = vectors[name][0].tolist()
        shard = EdgeShard.load(str(output[collection].qdrant))
        nearest = Query.Nearest(vector, using=name or None)
        request = QueryRequest(query=nearest, limit=options.top, with_payload=True)
        for hit in shard.query(request):
            payload = hit.payload or {}
            where = " > ".join(payload["metadata"]["section_path"])
            print(f"\n  {hit.score:.3f}  {payload['metadata']['source_file']}: {where}")
            print(textwrap.indent(textwrap.shorten(payload["text"], 240), "         "))
        shard.close()


if __name__ == "__main__":
    main()
