"""Requests to the hub for a warm start: the model is in the cache, nothing has changed.

    make requests                                  # needs nothing but this project
    python benchmarks/requests_made.py --fastembed-python PATH   # a Python that has fastembed, to count it too

All are measured against the same local hub, each in a process of its own, once with an empty cache and once more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.hub_server import HubServer
from tests.support.tiny_models import tiny_model

OURS = "import sys; from ultimate_embedder.cli import main; sys.exit(main({arguments!r}))"
THEIRS = "from sentence_transformers import SentenceTransformer as S; S('BAAI/bge-m3', device='cpu').encode(['x'])"
# the model file served to fastembed is a stand-in: requests are counted up to the moment it opens the file
FASTEMBED = """
from fastembed import TextEmbedding
try:
    TextEmbedding("sentence-transformers/all-MiniLM-L6-v2")
except Exception as error:
    assert "onnx" in str(error).lower() or "protobuf" in str(error).lower(), error
"""
FASTEMBED_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "model.onnx")


def count(server: HubServer, home: Path, python: str, program: str) -> tuple[int, int]:
    """Requests of a cold and of a warm start."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(home),
        "FASTEMBED_CACHE_PATH": str(home / "f"),
    }
    environment.pop("HF_HUB_OFFLINE", None)
    counts = []
    for _ in range(2):
        before = len(server.asked())
        done = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        counts.append(len(server.asked()) - before)
    return counts[0], counts[1]


def main() -> None:
    """Count, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fastembed-python")
    parser.add_argument("--output", type=Path, default=Path("build/requests.json"))
    options = parser.parse_args()
    rows: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as temporary, HubServer() as server:
        root = Path(temporary)
        server.publish("BAAI/bge-m3", tiny_model("xlm-roberta"))
        (root / "chunks").mkdir()
        (root / "chunks" / "t_chunks.json").write_text(json.dumps(["one", "two"]))
        arguments = ["embed", str(root / "chunks"), "--output", str(root / "out"), "--models", "bge-m3", "--quiet"]
        rows["ultimate-embedder"] = count(server, root / "ours", sys.executable, OURS.format(arguments=arguments))
        rows["sentence-transformers"] = count(server, root / "theirs", sys.executable, THEIRS)
        if options.fastembed_python:
            stand_in = root / "stand-in"
            stand_in.mkdir()
            for name in FASTEMBED_FILES:
                (stand_in / name).write_text("{}")
            server.publish("Qdrant/all-MiniLM-L6-v2-onnx", stand_in)
            rows["fastembed"] = count(server, root / "fastembed", options.fastembed_python, FASTEMBED)
    print(f"{'':24}{'cold':>6}{'warm':>6}")
    for name, (cold, warm) in rows.items():
        print(f"{name:24}{cold:>6}{warm:>6}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(
        json.dumps({name: {"cold": c, "warm": w} for name, (c, w) in rows.items()}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
