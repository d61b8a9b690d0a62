"""Options of every command that loads models: where they are looked for, and what they may do."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from ultimate_embedder.config.declared import Option

HUB = "model hub"

CacheDirOption = Annotated[str | Path | None, Option("the Hugging Face cache", HUB, "DIR", default="the standard one")]
OfflineOption = Annotated[bool, Option("never use the network", HUB)]
TrustOption = Annotated[str | Iterable[str], Option("models that may run code from their repository", HUB, "KEY,...")]
