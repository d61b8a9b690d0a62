"""`python -m ultimate_embedder`."""

import sys

from ultimate_embedder.cli import run

sys.exit(run())
