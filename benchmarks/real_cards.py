"""What real cards should do, by arithmetic: counted operations, bytes and calls, and what this host takes for its part.

    make real-cards            # prints the table of docs/real-cards.md and writes build/real-cards.json

No card is used. A forward of 64 x 256 tokens is counted on tensors without bytes; each kernel takes what its arithmetic
or its bytes take on the card's data sheet, times an efficiency that is assumed: the roofline of `plan`. What the host takes to launch a batch and
to tokenise is measured here, with one thread, in seconds of the processor: other programs do not disturb it much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"  # before tokenizers is imported: the rate of one core

from ultimate_embedder.devices.cards import find_card
from ultimate_embedder.devices.formats import card_format
from ultimate_embedder.models import KNOWN_CONFIGS, Encoder, find_spec, load_without_weights
from ultimate_embedder.models.cost import ForwardCost
from ultimate_embedder.models.known_configs import KnownConfig, write_stand_in
from ultimate_embedder.planning import PeakRates, batch_seconds, launch_seconds
from ultimate_embedder.types import ResolvedModel

ROWS, LENGTH = 64, 256
KAGGLE_CORES = 4
SETUPS = (("p100", 1), ("t4", 1), ("t4", 2), ("l4", 1), ("a100-40", 1), ("h100", 1))
MODELS = ("all-minilm-l6-v2", "bge-m3", "jina-code-embeddings-1.5b")


def described(key: str, scratch: Path, known: KnownConfig | None = None) -> Encoder:
    """A registered model without weights, as a plan has it; of other sizes, if they are given."""
    spec = find_spec(key)
    assert spec is not None
    folder = write_stand_in(spec, known or KNOWN_CONFIGS[key], scratch / uuid.uuid4().hex)
    model = ResolvedModel(key, spec, folder, "folder", "", "", 0)
    return load_without_weights(model, "float16", stand_in=True)


def count(key: str, capability: tuple[int, int], scratch: Path) -> ForwardCost:
    """The kernels of one forward."""
    return described(key, scratch).forward_cost(ROWS, LENGTH, capability)


def torch_seconds(key: str, rounds: int) -> float:
    """What torch takes on the host for a forward whose kernels take next to nothing: eight tokens, 8 numbers per head."""
    import torch
    import transformers

    torch.set_num_threads(1)
    known = KNOWN_CONFIGS[key]
    size = 8 * known.heads
    shrunk = replace(known, hidden=size, inner=size, vocabulary=100, head_dim=8 if known.head_dim else None)
    config = transformers.AutoConfig.for_model(**shrunk.as_config())
    built = transformers.AutoModel.from_config(config).eval()
    ids = torch.full((1, 8), 5)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    times = []
    with torch.inference_mode():
        for _ in range(rounds + 2):
            started = time.process_time()
            built(input_ids=ids, attention_mask=mask)
            times.append(time.process_time() - started)
    return statistics.median(times[2:])


def tokenized_per_second(rounds: int) -> float:
    """Texts of 256 tokens that one core tokenises in a second, by MiniLM's tokenizer."""
    from ultimate_embedder.models import load_encoder, resolve_model

    encoder = load_encoder(resolve_model("all-minilm-l6-v2"), "float32", "cpu")
    words = ("memory", "of", "a", "device", "is", "measured", "before", "and", "after", "every", "batch", ",")
    texts = [" ".join(words[(n + k) % len(words)] for k in range(250)) for n in range(512)]
    times = []
    for _ in range(rounds):
        started = time.process_time()
        encoder.tokenize(texts)
        times.append(time.process_time() - started)
    return len(texts) / statistics.median(times)


@dataclass(frozen=True)
class Expectation:
    """Texts per second of 256 tokens, and what limits them."""

    model: str
    cards: str
    dtype: str
    low: float
    high: float
    limit: str


def expect(key: str, card_key: str, cards: int, host: dict[str, float], scratch: Path) -> Expectation:
    card = find_card(card_key)
    assert card is not None
    cost = count(key, card.capability, scratch)
    by_host = {
        "launching": ROWS / launch_seconds(cost, host["torch_s"]),
        "tokenising": host["tokenized_per_core"] * (KAGGLE_CORES - 1),
    }
    seconds = batch_seconds(cost, PeakRates(card.half_flops, card.bandwidth))
    found = {}
    for word, taken in (("low", seconds.high), ("high", seconds.low)):
        rates = {"the card": cards * ROWS / taken, **by_host}
        found[word] = min(rates.items(), key=lambda rate: rate[1])
    limits = dict.fromkeys(limit for limit, _ in found.values())
    dtype = card_format("auto", card.capability)
    return Expectation(key, f"{cards} x {card.name}", dtype, found["low"][1], found["high"][1], " or ".join(limits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path("build/real-cards.json"))
    options = parser.parse_args()
    tokenized = tokenized_per_second(options.rounds)
    print(f"one core tokenises {tokenized:.0f} texts of 256 tokens per second\n")
    rows, counts = [], []
    print("| model | kernels per batch | TFLOP | GB moved | host, ms |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for key in MODELS:
            host = {"torch_s": torch_seconds(key, options.rounds), "tokenized_per_core": tokenized}
            cost = count(key, (7, 5), Path(folder))
            counts.append({"model": key, "calls": cost.calls, "flops": cost.flops, "bytes": cost.moved_bytes, **host})
            milliseconds = launch_seconds(cost, host["torch_s"]) * 1e3
            print(
                f"| {key} | {cost.calls} | {cost.flops / 1e12:.2f} | {cost.moved_bytes / 1e9:.1f} | {milliseconds:.1f} |"
            )
            rows += [expect(key, card, cards, host, Path(folder)) for card, cards in SETUPS]
    print("\n| model | cards | dtype | texts/s of 256 tokens | limited by |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.model} | {row.cards} | {row.dtype} | {row.low:,.0f} to {row.high:,.0f} | {row.limit} |")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"counted": counts, "expected": [asdict(row) for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
