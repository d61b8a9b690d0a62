"""Embed collections with the options of the V5 runner; `--help` lists them."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("ultimate_embedder") is None:  # a bare clone
    sys.path.append(str(Path(__file__).resolve().parents[1] / "src"))

from ultimate_embedder.compat.script import main

if __name__ == "__main__":
    sys.exit(main())
