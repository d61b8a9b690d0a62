"""Compare the event streams of two versions of the source tree.

    python -m tests.compare_events record before.json
    python -m tests.compare_events compare before.json after.json

`record` carries out the runs of `tests/support/event_runs.py` on the version that PYTHONPATH names (else the installed
one) and writes down which events came, in which order, and what they add up to. `compare` tells the differences in
words and exits with 1 if there are any.

Not compared, as it depends on timing:
- the number of BatchEncoded events: the size of a batch depends on what other devices and threads have taken;
- the number of those mitigations that follow free memory between batches (`VARYING_MITIGATIONS`);
- the order of events while a pass encodes: the tokenizer runs ahead of the devices, on its own thread;
- the order of events of passes that work at the same time.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.event_runs import EventRun, all_runs, carry_out, tree_of_product

Events = list[dict[str, Any]]
# they follow the free memory that is measured between batches, which depends on what is still computing then
VARYING_MITIGATIONS = frozenset({"adaptive_batch_grow", "adaptive_batch_reduce"})
WHILE_ENCODING = ("WindowTokenized", "BatchEncoded", "Mitigated ")


def record(path: Path) -> int:
    """Carry out every run and write down what its events say."""
    tree = tree_of_product()
    print(f"recording {tree}", file=sys.stderr)
    runs = {}
    for run in all_runs(tree):
        print(f"  {run.name}", file=sys.stderr, flush=True)
        runs[run.name] = _record_run(run)
    path.write_text(json.dumps(runs, indent=1) + "\n")
    return 0


def _record_run(run: EventRun) -> dict[str, Any]:
    recorded: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="compare-events-") as folder:
        for number, done in enumerate(carry_out(run, Path(folder)), 1):
            recorded[f"step {number}"] = {
                "exit code": done.exit_code,
                **{name: describe(events, run.concurrent) for name, events in done.logs.items()},
            }
            if done.exit_code and not done.logs:
                print(done.said, file=sys.stderr)
    return recorded


def describe(events: Events, concurrent: bool) -> dict[str, Any]:
    """What is compared of the events of one log: how many, in which order, and what they add up to."""
    lanes: dict[str, list[str]] = collections.defaultdict(list)
    for event in events:
        lanes[_lane(event) if concurrent else "all"].append(_label(event))
    counts = collections.Counter(_counted(events))
    return {
        "counts": dict(sorted(counts.items())),
        "order": {lane: list(_fold(labels)) for lane, labels in sorted(lanes.items())},
        "totals": _totals(events),
    }


def _label(event: dict[str, Any]) -> str:
    model = _model(event)
    # where companions are placed used to be told as a mitigation
    mitigated = event["event"] in ("Mitigated", "CompanionPlaced")
    kind = f"Mitigated {event['kind']}" if mitigated else _name(event)
    what = event.get("kind") if event["event"] == "ExportStarted" else None
    return " ".join(str(part) for part in (kind, model, what) if part)


def _name(event: dict[str, Any]) -> str:
    """Batches are told one by one, or added up."""
    return "BatchEncoded" if event["event"] == "BatchesEncoded" else str(event["event"])


def _model(event: dict[str, Any]) -> str | None:
    model: str | None = event.get("model") or event.get("details", {}).get("model")
    return model


def _lane(event: dict[str, Any]) -> str:
    """Events of one lane keep their order, whatever happens in the others."""
    return f"{event['collection'] or 'run'} / {_model(event) or 'all models'}"


def _counted(events: Events) -> Iterator[str]:
    """What is counted; of what varies, only that it is there."""
    batches = {"BatchEncoded" for event in events if _name(event) == "BatchEncoded"}
    yield from batches
    for event in events:
        if event["event"] == "Mitigated" and event["kind"] in VARYING_MITIGATIONS:
            continue
        if _name(event) != "BatchEncoded":
            yield _label(event).removesuffix(f" {_model(event)}") if _model(event) else _label(event)


def _fold(labels: Iterable[str]) -> Iterator[str]:
    """The events in order; what happens while a pass encodes becomes one entry that names each kind once."""
    encoding: set[str] = set()
    for label in labels:
        if label.startswith(WHILE_ENCODING) and not _varies(label):
            encoding.add(label)
        elif not _varies(label):
            yield from _flush(encoding)
            yield label
    yield from _flush(encoding)


def _flush(encoding: set[str]) -> Iterator[str]:
    if encoding:
        yield " + ".join(sorted(encoding))
        encoding.clear()


def _varies(label: str) -> bool:
    return label.startswith("Mitigated ") and label.split()[1] in VARYING_MITIGATIONS


def _totals(events: Events) -> dict[str, Any]:
    totals: dict[str, Any] = collections.defaultdict(int)
    for event in events:
        where = f"{event['collection'] or 'run'}"
        of_model = f"{where} / {_model(event)}"
        match _name(event):
            case "BatchEncoded":
                for name in ("rows", "tokens", "bad_rows"):
                    totals[f"{of_model}: {name} of batches"] += event[name]
            case "WindowTokenized":
                for name in ("texts", "tokens"):
                    totals[f"{of_model}: {name} tokenized"] += event[name]
                truncated = event.get("truncated_texts", event.get("truncated"))  # earlier versions called it truncated
                totals[f"{of_model}: truncated tokenized"] += truncated
            case "PassStarted":
                totals[f"{of_model}: texts, stored texts"] = [event["texts"], event["stored_texts"]]
            case "PassFinished":
                for name in ("rows", "dim", "stored_chunks", "truncated", "weight"):
                    totals[f"{of_model}: {name} of the pass"] = event[name]
            case "ChunksLoaded":
                names = ("found", "loaded", "rejected", "distinct_texts")
                totals[f"{where}: chunks"] = {name: event[name] for name in names}
            case "ModeChosen":
                totals[f"{where}: mode"] = [event["mode"], event["fusion"], event["weights"]]
            case "VectorsFused":
                totals[f"{where}: points"] = [event["points"], _dims(event)]
            case "ExportWritten":
                totals[f"{where}: export {event['exported']['kind']}"] = event["exported"]["rows"]
            case "CollectionFinished":
                totals[f"{where}: status"] = event["status"]
            case "RunFinished":
                totals["failed"] = event["error"] is not None
    return dict(sorted(totals.items()))


def _dims(event: dict[str, Any]) -> dict[str, Any]:
    dims: dict[str, Any] = event.get("dims") or {each["name"]: each["dim"] for each in event["vectors"]}
    return dims


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The differences, in words."""
    differences = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in before or name not in after:
            differences.append(f"{name}: recorded only {'before' if name in before else 'after'}")
        else:
            differences += [f"{name}, {words}" for words in _differences(before[name], after[name])]
    return differences


def _differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, list) and isinstance(after, list) and where.split(": ")[-2:-1] == ["order"]:
        yield from _order_differences(before, after, where)
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            inner = f"{where}: {key}" if where else key
            yield from _differences(before.get(key), after.get(key), inner)
    else:
        yield f"{where}: {_words(before)} before, {_words(after)} after"


def _order_differences(before: list[str], after: list[str], where: str) -> Iterator[str]:
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            place = f"after '{before[i - 1]}'" if i else "at the beginning"
            was, now = (", ".join(part) or "nothing" for part in (before[i:j], after[k:m]))
            yield f"{where}: {place} came {was}; now {now}"


def _words(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def print_table(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Per run: how many events of fixed number there were, and whether all is equal."""
    print(f"{'run':40} {'before':>8} {'after':>8}")
    for name in dict.fromkeys([*before, *after]):
        numbers = [_events(recorded.get(name, {})) for recorded in (before, after)]
        verdict = "equal" if before.get(name) == after.get(name) else "DIFFERENT"
        print(f"{name:40} {numbers[0]:8} {numbers[1]:8}  {verdict}")


def _events(run: dict[str, Any]) -> int:
    logs = [log for step in run.values() for log in step.values() if isinstance(log, dict)]
    return sum(sum(log["counts"].values()) for log in logs)


def main(arguments: list[str] | None = None) -> int:
    """Record or compare; the exit code is 1 where event streams differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.compare_events", description="Compare event streams.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="carry out the runs").add_argument("file", type=Path)
    comparing = commands.add_parser("compare", help="tell the differences between two recordings")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        return record(options.file)
    before, after = (json.loads(path.read_text()) for path in (options.before, options.after))
    print_table(before, after)
    differences = compare(before, after)
    for words in differences:
        print(f"- {words}")
    print(f"{len(differences)} differences" if differences else "no difference")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
