"""`ledger.jsonl`: the shards of a pass that count, one line each, with a checksum of the shard and one of the line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ultimate_embedder.files import atomic_file, sync_folder
from ultimate_embedder.output import PassOutput
from ultimate_embedder.state import Damaged, Fields, UnfitError, make_way, parse_state, read_content, sealed

LARGEST_ROWS = 1 << 31
_SHARD_NAME = re.compile(r"shard-([0-9]{5,12})(\.npy|\.arrow)", re.ASCII)


@dataclass(frozen=True)
class LedgerLine:
    """A shard that counts."""

    shard: str
    rows: int
    sha256: str
    revision: str
    dtype: str


@dataclass(frozen=True)
class Ledger:
    """The lines of a ledger that can be used, and what is wrong with the others."""

    lines: tuple[LedgerLine, ...] = ()
    damage: Damaged | None = None
    torn: bool = False
    """Whether the last line is incomplete: a run was killed while it was written."""

    @property
    def rows(self) -> int:
        """Vectors in all shards."""
        return sum(line.rows for line in self.lines)


def read_ledger(folder: Path) -> Ledger:
    """The ledger of a pass; empty if there is none."""
    path = PassOutput(folder).ledger
    content = read_content(path)
    if content is None:
        return Ledger()
    if isinstance(content, Damaged):
        return Ledger(damage=content)
    *whole, rest = content.split(b"\n")
    good: dict[str, LedgerLine] = {}
    problems: list[str] = []
    for number, line in enumerate(whole, 1):
        try:
            parsed = parse_state(line, _parse_line)
            if parsed.shard in good:
                raise UnfitError(f"it lists {parsed.shard} again")
            good[parsed.shard] = parsed
        except UnfitError as error:
            problems.append(f"line {number}: {error}")
    return Ledger(tuple(good.values()), _damage(path, problems, len(whole)), torn=bool(rest))


def append_line(folder: Path, line: LedgerLine) -> None:
    """Make a shard count, durably."""
    with open(PassOutput(folder).ledger, "ab") as ledger:
        ledger.write(_encoded(line))
        ledger.flush()
        os.fsync(ledger.fileno())
    sync_folder(folder)


def rewrite_ledger(folder: Path, lines: Iterable[LedgerLine]) -> None:
    """Replace the ledger, atomically."""
    path = PassOutput(folder).ledger
    make_way(path)
    with atomic_file(path) as ledger:
        ledger.writelines(map(_encoded, lines))


def shard_number(name: str) -> int:
    """The number of a shard; raises `UnfitError` if that is not the name of one."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None or PassOutput(Path()).shard(int(match[1]), match[2]).name != name:
        raise UnfitError("shard is not the name of a shard")
    return int(match[1])


def _parse_line(fields: Fields) -> LedgerLine:
    line = LedgerLine(
        shard=fields.text("shard"),
        rows=fields.count("rows", least=1, most=LARGEST_ROWS),
        sha256=fields.sha256("sha256"),
        revision=fields.text("revision"),
        dtype=fields.text("dtype"),
    )
    shard_number(line.shard)
    return line


def _encoded(line: LedgerLine) -> bytes:
    return json.dumps(sealed(asdict(line))).encode() + b"\n"


def _damage(path: Path, problems: list[str], lines: int) -> Damaged | None:
    if not problems:
        return None
    more = f", and {len(problems) - 1} more of {lines} lines" if len(problems) > 1 else ""
    return Damaged(path, f"is damaged ({problems[0]}{more})")
