"""`status` and `verify`: contents and integrity of an output."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.cli.parser import Commands, add_command, add_options, whole_number
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_NOT_CHECKED, EXIT_OK
from ultimate_embedder.config import hub_access
from ultimate_embedder.errors import UsageError
from ultimate_embedder.lock import find_holder
from ultimate_embedder.options import make_config
from ultimate_embedder.output import POINTS_FILE, Output
from ultimate_embedder.terminal import counted, printable, show

if TYPE_CHECKING:
    from ultimate_embedder.verify import Verification


def add_commands(commands: Commands) -> None:
    """Declare the commands."""
    status = add_command(
        commands,
        "status",
        _status,
        help="show the contents of an output and what is left to do",
        examples="status out/",
    )
    verify = add_command(
        commands,
        "verify",
        _verify,
        help="check an output: all checksums, and a sample of recomputed vectors",
        description="Check every checksum of an output, and recompute a sample of the vectors in the store and in "
        f"{POINTS_FILE}. Texts are taken from the exports, or from the chunk files if they still exist.",
        examples="verify out/\nverify out/ --sample 0",
        epilog="Exit codes: 0 everything was checked and matches, 1 something is damaged or does not match, "
        "2 invalid usage, 4 nothing is damaged, but not everything could be checked.",
    )
    verify.add_argument(
        "--sample",
        type=whole_number,
        default=20,
        metavar="N",
        help="texts per collection whose vectors are recomputed, 0 for none (default: 20)",
    )
    add_options(verify, make_config, ["cache_dir", "trust_remote_code"])
    for each in (status, verify):
        each.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed")


def _status(options: argparse.Namespace) -> int:
    from ultimate_embedder.status import output_nodes, output_status, output_uploads

    passes = output_status(options.folder)
    if problem := Output(options.folder).try_summary()[1]:
        show(problem, sys.stderr)
    if holder := find_holder(options.folder).words:
        show(f"in use by {holder}: 'ultimate-embedder watch {options.folder}' shows the run", sys.stderr)
    heading = f"{'collection':24}{'model':34}{'dtype':10}{'vectors':>9}{'missing':>9}{'shards':>8}{'MB':>9}  next"
    show(heading, sys.stdout)
    for each in passes:
        missing = "?" if each.missing is None else each.missing
        counts = f"{each.rows:>9}{missing:>9}{each.shards:>8}{each.size_bytes / 1e6:>9.1f}"
        words = f"{printable(each.collection):24}{printable(each.model):34}{printable(each.dtype):10}"
        show(f"{words}{counts}  {each.next}", sys.stdout)
    for sent in output_uploads(options.folder):
        alias = f" (alias {printable(sent.upload.alias)})" if sent.upload.alias else ""
        place = f"{printable(sent.upload.target)}{alias} on {printable(sent.upload.url)}"
        count = f"{sent.upload.points} points" if sent.upload.finished else "upload"
        show(f"{printable(sent.collection)}: {count} in {place}, {printable(sent.state)}", sys.stdout)
    for words in output_nodes(options.folder):
        show(printable(words), sys.stdout)
    return EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    from ultimate_embedder.verify import verify_output

    if options.sample < 0:
        raise UsageError(f"--sample {options.sample}: must be at least 0.")
    access = hub_access(cache_dir=options.cache_dir, offline=True, trusted=options.trust_remote_code)
    found = verify_output(options.folder, options.sample, access)
    for words in (*found.damaged, *found.unchecked, *found.remarks):
        show(words, sys.stdout)
    show(_verified(found), sys.stdout)
    if found.damaged:
        show("Run the same embed command again: damaged files are recomputed and rewritten.", sys.stderr)
        return EXIT_FAILED
    if found.unchecked:
        return EXIT_NOT_CHECKED
    show("OK: all checksums match", sys.stdout)
    return EXIT_OK


def _verified(found: Verification) -> str:
    result = f"{found.mismatches} do not match" if found.mismatches else "all match"
    recomputed = f"recomputed {counted(found.vectors, 'vector')}" + (f": {result}" if found.vectors else "")
    return f"checked {counted(found.shards, 'shard')} and {counted(found.exports, 'export')}; {recomputed}"
