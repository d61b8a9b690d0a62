"""Where the bottleneck is with 10, 100 and 1,000 cards, for a billion chunks: a simulation, on any machine, in seconds.

Units of texts go out through the driver's network, are computed by nodes that hold at most two each, come back through
the network and are stored by the driver, each of these one after the other. The figures below are assumed; those that
were measured are in scale_out_measured.json, and are null before that.

    python benchmarks/scale_out.py            # print the tables
    python benchmarks/scale_out.py --write    # and write them into docs/scale.md
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEASURED_FILE = ROOT / "benchmarks" / "scale_out_measured.json"
PAGE = ROOT / "docs" / "scale.md"
CHUNKS = 1_000_000_000
CARDS = (10, 100, 1_000)

# Of the program: execution/cluster/units.py and dispatch.py
UNIT_TEXTS = 1024
IN_FLIGHT = 2

# Measured on one machine, elsewhere: docs/exports.md. Of one core that uploads.
UPLOAD_POINTS_PER_S = {384: 14_000.0, 1024: 10_000.0}

# Measured on one machine: the table at the top of docs/scale.md, 100,000 chunks with vectors of 384 dims
LOAD_S_PER_MILLION = 17.0
EXPORT_S_PER_MILLION = 171.0  # npy, parquet, jsonl and qdrant
CHUNK_KEY_BYTES = 16  # in the driver's memory, of each chunk of a collection

# Assumed: nothing of this was measured
CARDS_PER_NODE = 2
CARD_TEXTS_PER_S = {384: 2_000.0, 1024: 67.0}  # a T4: a small model, and bge-m3 by the roofline of docs/plan.md
JITTER = 0.1  # of the time of a unit, as a share
NETWORK_BYTES_PER_S = 1e9  # of the driver's machine, each way: 10 Gbit/s, less overhead
SHARED_DISK_BYTES_PER_S = 2e9  # of a shared file system, all nodes together
HUB_BYTES_PER_S = 50e6  # of a node that downloads a model
MODEL_BYTES = {384: 91e6, 1024: 2.27e9}  # all-MiniLM-L6-v2, bge-m3
UPLOAD_CORES = 8  # of the machine that uploads; the server must keep up with it
MODELS = {384: "small, 384 dims", 1024: "large, 1,024 dims"}

KEY_BYTES = 17  # of a text that comes back without its vector
ROUNDS = 60  # units that each node has done when the simulation ends
MOST_UNITS = 60_000
WARM = 0.2  # of the units, before rates are taken
DRIVERS = 10  # that the work of one is divided among, in the last table
UNKNOWN = "to be measured"
SATURATED = 0.9  # a resource that is busy for so much of the time is the bottleneck
MARK, END = "<!-- scale_out -->\n", "<!-- end -->"


@dataclass(frozen=True)
class Measured:
    """What was measured; None where it was not."""

    driver_vectors_per_s_384: float | None = None
    driver_vectors_per_s_1024: float | None = None
    shared_output_vectors_per_s: float | None = None
    unit_bytes_out: float | None = None
    unit_bytes_back_384: float | None = None
    overhead_percent: float | None = None
    cost_per_million_s_cpu: float | None = None

    def driver_vectors_per_s(self, dim: int, *, shared: bool) -> float | None:
        """What one driver takes in."""
        if shared:
            return self.shared_output_vectors_per_s
        return self.driver_vectors_per_s_384 if dim == 384 else self.driver_vectors_per_s_1024

    def bytes_back(self, dim: int, *, shared: bool) -> float | None:
        """Of a unit: keys alone where nodes write the vectors."""
        if self.unit_bytes_back_384 is None:
            return None
        return KEY_BYTES * UNIT_TEXTS if shared else self.unit_bytes_back_384 + UNIT_TEXTS * 4 * (dim - 384)


@dataclass(frozen=True)
class Setup:
    """One cluster: its nodes, and the seconds that a unit takes at each place."""

    nodes: int
    compute_s: float
    out_s: float
    back_s: float
    store_s: float
    disk_s: float = 0.0
    """Of the shared file system."""


@dataclass(frozen=True)
class Result:
    """What came of it: texts per second, and for how much of the time each place was busy."""

    texts_per_s: float
    busy: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """The place that is busiest; the nodes, unless another has hardly any time left."""
        name = max(self.busy, key=lambda each: self.busy[each])
        return name if name == "nodes" or self.busy[name] >= SATURATED else "nodes"


class Place:
    """Serves one after the other, in the order of their arrival."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.busy_s = 0.0

    def serve(self, arrival: float, seconds: float) -> float:
        """When it is done with somebody who arrives then."""
        self.free_at = max(self.free_at, arrival) + seconds
        self.busy_s += seconds
        return self.free_at


def simulate(setup: Setup, seed: int = 0) -> Result:
    """Run units through the cluster until each node has done some."""
    rng = random.Random(seed)
    nodes = [Place() for _ in range(setup.nodes)]
    places = {"network out": Place(), "network back": Place(), "driver": Place(), "shared disk": Place()}
    units = min(MOST_UNITS, max(4 * setup.nodes * IN_FLIGHT, setup.nodes * ROUNDS))
    # (time, number, node, what happens): a place is entered in the order of time
    waiting: list[tuple[float, int, int, str]] = []
    given = 0
    for _ in range(IN_FLIGHT):
        for node in range(setup.nodes):
            waiting.append((0.0, given, node, "out"))
            given += 1
    heapq.heapify(waiting)
    done: list[float] = []
    while waiting and len(done) < units:
        at, number, node, step = heapq.heappop(waiting)
        if step == "out":
            heapq.heappush(waiting, (places["network out"].serve(at, setup.out_s), number, node, "compute"))
        elif step == "compute":
            seconds = setup.compute_s * max(0.1, rng.gauss(1.0, JITTER))
            heapq.heappush(waiting, (nodes[node].serve(at, seconds), number, node, "disk"))
        elif step == "disk":
            heapq.heappush(waiting, (places["shared disk"].serve(at, setup.disk_s), number, node, "back"))
        elif step == "back":
            heapq.heappush(waiting, (places["network back"].serve(at, setup.back_s), number, node, "store"))
        else:
            stored = places["driver"].serve(at, setup.store_s)
            done.append(stored)
            heapq.heappush(waiting, (stored, given, node, "out"))
            given += 1
    done.sort()
    first = int(len(done) * WARM)
    rate = (len(done) - 1 - first) / max(done[-1] - done[first], 1e-12)
    per_unit = {
        "nodes": setup.compute_s / setup.nodes,
        "network out": setup.out_s,
        "network back": setup.back_s,
        "driver": setup.store_s,
        "shared disk": setup.disk_s,
    }
    return Result(rate * UNIT_TEXTS, {name: min(1.0, seconds * rate) for name, seconds in per_unit.items()})


def make_setup(cards: int, dim: int, measured: Measured, *, shared: bool = False, drivers: int = 1) -> Setup | None:
    """The part of a cluster that one of several drivers has; None if something is not measured yet."""
    nodes = max(1, math.ceil(cards / CARDS_PER_NODE / drivers))
    rate, back = measured.driver_vectors_per_s(dim, shared=shared), measured.bytes_back(dim, shared=shared)
    if rate is None or back is None or measured.unit_bytes_out is None or measured.overhead_percent is None:
        return None
    computing = UNIT_TEXTS / (CARD_TEXTS_PER_S[dim] * CARDS_PER_NODE) * (1 + measured.overhead_percent / 100)
    return Setup(
        nodes=nodes,
        compute_s=computing,
        out_s=measured.unit_bytes_out / NETWORK_BYTES_PER_S,
        back_s=back / NETWORK_BYTES_PER_S,
        store_s=UNIT_TEXTS / rate,
        disk_s=UNIT_TEXTS * 4 * dim / SHARED_DISK_BYTES_PER_S if shared else 0.0,
    )


def result_of(cards: int, dim: int, measured: Measured, *, shared: bool = False, drivers: int = 1) -> Result | None:
    """All drivers together; the shared file system is one for all of them."""
    setup = make_setup(cards, dim, measured, shared=shared, drivers=drivers)
    if setup is None:
        return None
    found = simulate(replace(setup, disk_s=setup.disk_s * drivers))
    return Result(found.texts_per_s * drivers, found.busy)


def drivers_needed(cards: int, dim: int, measured: Measured) -> int | None:
    """How many drivers it takes until the nodes are the bottleneck."""
    for drivers in range(1, 65):
        found = result_of(cards, dim, measured, drivers=drivers)
        if found is None:
            return None
        if found.bottleneck == "nodes":
            return drivers
    return None


def read_measured(path: Path = MEASURED_FILE) -> Measured:
    """The figures of the file; names that are not known here are left out."""
    content = json.loads(path.read_text("utf-8"))
    return Measured(**{name: content.get(name) for name in Measured.__dataclass_fields__})


def tables(measured: Measured) -> str:
    """All tables, as Markdown."""
    parts = [
        "**Measured** (`benchmarks/scale_out_measured.json`)",
        _table(("figure", "value"), _measured_rows(measured)),
        "**Assumed** (at the top of `benchmarks/scale_out.py`)",
        _table(("figure", "value"), _assumed_rows()),
        "**A billion chunks: encoding**",
        _table(
            ("cards", "model", "", "texts/s", "time", "bottleneck", "busy: nodes", "driver", "network back"),
            _encoding_rows(measured),
        ),
        "**Models to nodes**",
        _table(("cards", "model", "all nodes from the hub at the same time", "`--ship-models`"), _model_rows()),
        "**A billion chunks: the rest, by one driver**",
        _table(("what", "model", "time or size", "with 10 drivers"), _driver_rows()),
    ]
    return "\n\n".join(parts) + "\n"


def _measured_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    units = {
        "driver_vectors_per_s_384": "vectors/s that one driver takes in, 384 dims",
        "driver_vectors_per_s_1024": "the same, 1,024 dims",
        "shared_output_vectors_per_s": "the same with `--shared-output`",
        "unit_bytes_out": "bytes of a unit of 1,024 texts on its way out",
        "unit_bytes_back_384": "bytes of its vectors on their way back, 384 dims",
        "overhead_percent": "% that a cluster takes longer than local workers on the same cores",
        "cost_per_million_s_cpu": "seconds for a million chunks, all-MiniLM-L6-v2 on this CPU",
    }
    for name, words in units.items():
        value = getattr(measured, name)
        yield words, UNKNOWN if value is None else f"{value:,.4g}" if value < 100 else f"{value:,.0f}"
    for dim, rate in UPLOAD_POINTS_PER_S.items():
        yield f"points/s that one core uploads, {dim:,} dims ([exports.md](exports.md#speed))", f"{rate:,.0f}"
    yield "seconds to read a million chunks (above)", f"{LOAD_S_PER_MILLION:,.0f}"
    yield "seconds to write four exports of a million chunks (above)", f"{EXPORT_S_PER_MILLION:,.0f}"


def _assumed_rows() -> Iterator[tuple[str, ...]]:
    yield "cards of a node", str(CARDS_PER_NODE)
    for dim, rate in CARD_TEXTS_PER_S.items():
        yield f"texts/s of a card, model {MODELS[dim]}", f"{rate:,.0f}"
        yield f"files of that model, {dim:,} dims", _bytes(MODEL_BYTES[dim])
    yield "network of the driver's machine, each way", f"{_bytes(NETWORK_BYTES_PER_S)}/s"
    yield "shared file system, all nodes together", f"{_bytes(SHARED_DISK_BYTES_PER_S)}/s"
    yield "a node that downloads a model", f"{_bytes(HUB_BYTES_PER_S)}/s"
    yield "cores that upload, to servers that keep up", str(UPLOAD_CORES)
    yield "spread of the time of a unit", f"{JITTER:.0%}"


def _encoding_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    for dim, model in MODELS.items():
        for cards in CARDS:
            base = result_of(cards, dim, measured)
            yield _encoding_row(cards, model, "one driver", base)
            if base is None or base.bottleneck == "nodes":
                continue  # nothing else would change it, or nothing is known
            yield _encoding_row(cards, model, "`--shared-output`", result_of(cards, dim, measured, shared=True))
            drivers = drivers_needed(cards, dim, measured)
            if drivers is not None:
                several = result_of(cards, dim, measured, drivers=drivers)
                yield _encoding_row(cards, model, f"{drivers} drivers", several)


def _encoding_row(cards: int, model: str, how: str, result: Result | None) -> tuple[str, ...]:
    begin = (f"{cards:,}", model, how)
    if result is None:
        return (*begin, *[UNKNOWN] * 6)
    shares = [f"{result.busy[name]:.0%}" for name in ("nodes", "driver", "network back")]
    time = _duration(CHUNKS / result.texts_per_s)
    return (*begin, f"{result.texts_per_s:,.0f}", time, result.bottleneck, *shares)


def _model_rows() -> Iterator[tuple[str, ...]]:
    for dim, model in MODELS.items():
        for cards in CARDS:
            nodes = math.ceil(cards / CARDS_PER_NODE)
            shipped = _duration(nodes * MODEL_BYTES[dim] / NETWORK_BYTES_PER_S)
            yield f"{cards:,}", model, _duration(MODEL_BYTES[dim] / HUB_BYTES_PER_S), shipped


def _driver_rows() -> Iterator[tuple[str, ...]]:
    millions = CHUNKS / 1e6
    for what, seconds in (("read chunks", LOAD_S_PER_MILLION), ("four exports", EXPORT_S_PER_MILLION)):
        yield what, "small, 384 dims", _duration(millions * seconds), _duration(millions * seconds / DRIVERS)
    yield "keys of chunks in memory, one collection", "any", _bytes(CHUNKS * CHUNK_KEY_BYTES), _each(CHUNK_KEY_BYTES)
    for dim, model in MODELS.items():
        yield "vectors in the store", model, _bytes(CHUNKS * 4 * dim), _each(4 * dim)
        upload = CHUNKS / (UPLOAD_POINTS_PER_S[dim] * UPLOAD_CORES)
        yield "upload to Qdrant", model, _duration(upload), _duration(upload / DRIVERS)


def _each(bytes_per_chunk: int) -> str:
    return f"{_bytes(CHUNKS * bytes_per_chunk / DRIVERS)} each"


def _table(headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _bytes(count: float) -> str:
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= length:
            return f"{count / length:,.3g} {unit}"
    return f"{count:,.0f} B"


def write_page(page: Path, content: str) -> None:
    """Write the tables between their marks."""
    text = page.read_text("utf-8")
    before, mark, rest = text.partition(MARK)
    page.write_text(before + mark + content + rest[rest.index(END) :], "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--measured", type=Path, default=MEASURED_FILE, metavar="FILE", help="figures that were measured"
    )
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scale.md")
    options = parser.parse_args()
    content = tables(read_measured(options.measured))
    print(content)
    if options.write:
        write_page(PAGE, content)


if __name__ == "__main__":
    main()
