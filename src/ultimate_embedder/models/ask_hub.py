"""Ask the hub whether it answers."""

from __future__ import annotations

from dataclasses import replace

from ultimate_embedder.config import HubAccess
from ultimate_embedder.events import Event
from ultimate_embedder.models.hub_client import HubClient
from ultimate_embedder.models.registry import find_spec, unknown_model


def ask_hub(name: str, access: HubAccess) -> str:
    """The commit of a known model on the hub, asked once; raises `DownloadError` if there is no answer."""
    spec = find_spec(name)
    if spec is None:
        raise unknown_model(name)

    def ignore(event: Event) -> None:
        """Nobody waits for a retry."""

    once = replace(access, retry=replace(access.retry, tries=1))
    return HubClient(spec, once, ignore).describe()[0]
