"""`upload`: send finished collections to a Qdrant server."""

from __future__ import annotations

import argparse
import json
import sys

from ultimate_embedder.cli.parser import Commands, add_command, add_option_groups
from ultimate_embedder.cli.process import EXIT_OK
from ultimate_embedder.export import UPLOAD_OUTPUT, UploadReport, make_upload_config
from ultimate_embedder.terminal import show, write_line


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `make_upload_config`."""
    upload = add_command(
        commands,
        "upload",
        _upload,
        help="send finished collections to a Qdrant server",
        usage="%(prog)s DIR [--url URL] [options]",
        description="Upload the points that embed wrote. After an interruption, run the same command again to resume: "
        "points are never duplicated.",
    )
    groups = add_option_groups(upload, make_upload_config)
    groups[UPLOAD_OUTPUT].add_argument("--json", action="store_true", help="print the result as JSON")


def _upload(options: argparse.Namespace) -> int:
    given = vars(options)
    as_json = given.pop("json")
    config = make_upload_config(**given)
    from ultimate_embedder.export import upload_points
    from ultimate_embedder.report import make_progress

    with make_progress(config.quiet) as progress:
        reports = upload_points(config, progress)
    if as_json:
        write_line(json.dumps([report.as_dict() for report in reports], indent=2), sys.stdout)
        return EXIT_OK
    for report in reports:
        show(_planned(report) if report.dry_run else _done(report), sys.stdout)
    return EXIT_OK


def _done(report: UploadReport) -> str:
    alias = f", alias {report.alias}" if report.alias else ""
    return f"{report.collection}: {report.counted} of {report.points} points in {report.target}{alias}"


def _planned(report: UploadReport) -> str:
    state = "exists"
    if report.created:
        state = "would be created"
    if report.recreated is not None:
        state = f"would be deleted ({report.recreated} points) and created anew"
    alias = ""
    if report.alias:
        before = f" instead of {report.replaced}" if report.replaced else ""
        alias = f"; alias {report.alias} would point to it{before}"
    unchanged = report.counted - (report.changed or 0)
    points = f"{report.new} points new, {report.changed} changed, {unchanged} unchanged, {report.removed} removed"
    size = f"{report.sent_bytes / 1e6:,.1f} MB to send"
    return f"{report.collection}: {report.target} {state}{alias}; {points}; {size}. Nothing was changed."
