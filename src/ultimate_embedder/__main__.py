"""`python -m ultimate_embedder`."""

import sys

from ultimate_embedder.cli import main

sys.exit(main())
