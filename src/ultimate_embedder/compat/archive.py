"""Pack an output into one file, for a download."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ultimate_embedder.files import atomic_file
from ultimate_embedder.output import Output


def zip_output(output: Output) -> Path:
    """Pack the folder into FOLDER.zip beside it, without the lock and without temporary files."""
    folder = output.folder if output.folder.name not in ("", "..") else output.folder.resolve()
    packed = folder.with_name(f"{folder.name}.zip")
    with atomic_file(packed) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as into:
        for inside in output.files():
            into.write(output.folder / inside, inside.as_posix())
    return packed
