"""Predicted against measured peak memory, batch by batch, on a simulated device.

    make plot            # writes docs/memory.svg and build/memory.json

Runs all-MiniLM-L6-v2 over generated texts of a realistic length spread, on a device small enough that memory, not
the number of texts, decides how large a batch is.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

from ultimate_embedder.api import run_and_report
from ultimate_embedder.events import BatchEncoded, Event
from ultimate_embedder.options import make_config

WORDS = ("vector", "memory", "chunk", "batch", "model", "device", "query", "point", "window", "token")
WIDTH, HEIGHT, EDGE = 640, 420, 56


def measure(texts: int, device: str) -> tuple[list[dict[str, Any]], Any]:
    """Run, and give each batch's prediction and measurement."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "chunks" / "generated").mkdir(parents=True)
        records = [
            " ".join(rng.choices(WORDS, k=min(250, int(rng.lognormvariate(4.0, 0.8)) + 2))) for _ in range(texts)
        ]
        (root / "chunks" / "generated" / "g_chunks.json").write_text(json.dumps(records))
        config = make_config(root / "chunks", root / "out", devices=device, precision="fp32", exports="npy")
        seen: list[Event] = []  # the log of a run does not have every batch
        summary = run_and_report(config, quiet=True, watch=[seen.append])
    batches = [event for event in seen if isinstance(event, BatchEncoded) and event.measured_bytes]
    keep = ("batch_index", "rows", "longest", "predicted_bytes", "measured_bytes")
    return [{name: getattr(batch, name) for name in keep} for batch in batches], summary.collections[0].passes[0]


def draw(batches: list[dict[str, Any]], title: str) -> str:
    """A scatter plot as SVG: one dot per batch, the diagonal is a perfect prediction."""
    values = [batch[name] / 1e6 for batch in batches for name in ("predicted_bytes", "measured_bytes")]
    low, high = math.log10(min(values) * 0.9), math.log10(max(values) * 1.1)

    def place(megabytes: float, size: int) -> float:
        return EDGE + (math.log10(megabytes) - low) / (high - low) * (size - 2 * EDGE)

    def x(megabytes: float) -> float:
        return place(megabytes, WIDTH)

    def y(megabytes: float) -> float:
        return HEIGHT - place(megabytes, HEIGHT)

    ticks = [t for e in range(-1, 5) for t in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if low <= math.log10(t) <= high]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-size="14">{title}</text>',
        f'<line x1="{x(10**low)}" y1="{y(10**low)}" x2="{x(10**high)}" y2="{y(10**high)}" stroke="#999"/>',
    ]
    for tick in ticks:
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{EDGE - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for batch in batches:
        color = "#d62728" if batch["batch_index"] < 10 else "#1f77b4"
        place_x, place_y = x(batch["measured_bytes"] / 1e6), y(batch["predicted_bytes"] / 1e6)
        parts.append(f'<circle cx="{place_x:.1f}" cy="{place_y:.1f}" r="3" fill="{color}" fill-opacity="0.6"/>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">measured peak of a batch, MB</text>')
    parts.append(f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">predicted, MB</text>')
    parts.append('<text x="72" y="48" fill="#d62728">first ten batches</text>')
    parts.append('<text x="72" y="64" fill="#1f77b4">after that</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    """Measure, print the numbers, and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--device", default="simulated:384MiB")
    parser.add_argument("--plot", type=Path, default=Path("docs/memory.svg"))
    parser.add_argument("--output", type=Path, default=Path("build/memory.json"))
    options = parser.parse_args()
    batches, passed = measure(options.texts, options.device)
    error = f"{passed.prediction_error:.1%}" if passed.prediction_error is not None else "too few batches"
    print(f"{len(batches)} batches of {options.texts} texts on {options.device}")
    print(f"prediction error after ten batches, 95th percentile: {error}")
    print(f"peak reserved: {passed.peak_reserved_bytes / 1e6:.0f} MB")
    print(f"peak allocated: {passed.peak_memory_bytes / 1e6:.0f} MB")
    options.plot.write_text(draw(batches, f"all-MiniLM-L6-v2 in fp32 on {options.device}"))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(batches, indent=1) + "\n")


if __name__ == "__main__":
    main()
