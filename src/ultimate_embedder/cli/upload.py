"""`upload`: send finished collections to a Qdrant server."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ultimate_embedder.cli.parser import Commands, add_command, add_options
from ultimate_embedder.cli.process import EXIT_OK
from ultimate_embedder.errors import UsageError
from ultimate_embedder.options import make_config
from ultimate_embedder.terminal import show


def add_commands(commands: Commands) -> None:
    """Declare the command."""
    upload = add_command(
        commands,
        "upload",
        _upload,
        help="send finished collections to a Qdrant server",
        description="Upload the points that embed wrote. After an interruption, run the same command again to resume: "
        "points are never duplicated.",
        examples="upload out/ --url http://localhost:6333\nupload out/docs --url https://host:6333 --api-key-env KEY",
    )
    upload.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed, or one collection in it")
    upload.add_argument("--url", required=True, metavar="URL", help="for example http://localhost:6333")
    upload.add_argument("--collection", metavar="NAME", help="name in Qdrant (default: from collection and model)")
    upload.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    add_options(upload, make_config, ["quiet"])


def _upload(options: argparse.Namespace) -> int:
    api_key = None
    if options.api_key_env:
        api_key = os.environ.get(options.api_key_env)
        if not api_key:
            raise UsageError(f"--api-key-env {options.api_key_env}: that variable is not set.")
    if not options.folder.is_dir():
        raise UsageError(f"{options.folder} is not a folder. Give the --output of an earlier embed.")
    if not options.url.strip():
        raise UsageError("--url is empty. Write http://localhost:6333, for example.")
    from ultimate_embedder.export import upload
    from ultimate_embedder.report import make_progress

    with make_progress(options.quiet, options.least_level) as progress:
        reports = upload(options.folder, options.url, progress, options.collection, api_key)
    for report in reports:
        show(f"{report.collection}: {report.counted} of {report.points} points in {report.target}", sys.stdout)
    return EXIT_OK
