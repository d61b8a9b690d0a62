"""What real cards should do, by arithmetic: counted operations, bytes and calls, and what this host takes for its part.

    make real-cards            # prints the table of docs/real-cards.md and writes build/real-cards.json

No card is used. A forward of 64 x 256 tokens is counted on tensors without bytes; each kernel takes what its arithmetic
or its bytes take on the card's data sheet, times an efficiency that is assumed. What the host takes to launch a batch and
to tokenise is measured here, with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # before tokenizers is imported: the rate of one core

ROWS, LENGTH = 64, 256
KAGGLE_CORES = 4
LAUNCH_ON_CARD_S = 3e-6  # assumed: between two kernels
LAUNCH_ON_HOST_S = 5e-6  # assumed: what the driver adds to torch's own work for each launch
EFFICIENCY = {"low": (0.30, 0.70), "high": (0.45, 0.85)}  # assumed: of the peak rate, and of the bandwidth
SETUPS = (("p100", 1), ("t4", 1), ("t4", 2), ("l4", 1), ("a100-40", 1), ("h100", 1))


@dataclass(frozen=True)
class Model:
    """A model by the shape that its config has."""

    name: str
    kind: str
    layers: int
    heads: int
    hidden: int
    inner: int
    vocabulary: int
    key_heads: int | None = None

    def config(self) -> Any:
        """The config of its architecture."""
        import transformers

        kind: Any = getattr(transformers, f"{self.kind}Config")
        options = {"num_key_value_heads": self.key_heads} if self.key_heads else {}
        return kind(
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            vocab_size=self.vocabulary,
            **options,
        )

    def shrunk(self) -> Model:
        """As many layers and calls, and almost nothing to compute."""
        return replace(self, hidden=8 * self.heads, inner=8 * self.heads, vocabulary=100)


MODELS = (
    Model("all-MiniLM-L6-v2", "Bert", layers=6, heads=12, hidden=384, inner=1536, vocabulary=30522),
    Model("bge-m3", "XLMRoberta", layers=24, heads=16, hidden=1024, inner=4096, vocabulary=250002),
    Model(
        "1.5B decoder (Qwen2)", "Qwen2", layers=28, heads=12, hidden=1536, inner=8960, vocabulary=151936, key_heads=2
    ),
)


def count(model: Model, dtype: str) -> Any:
    """The kernels of one forward."""
    import torch
    import transformers

    from ultimate_embedder.models.cost import count_forward

    def make() -> Callable[[], Any]:
        built = transformers.AutoModel.from_config(model.config(), dtype=getattr(torch, dtype)).eval()
        ids = torch.ones(ROWS, LENGTH, dtype=torch.long)
        return lambda: built(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state

    return count_forward(make)


def launch_seconds(model: Model, rounds: int) -> float:
    """What the host takes for a forward whose kernels take next to nothing: eight tokens, 8 numbers per head."""
    import torch
    import transformers

    torch.set_num_threads(1)
    built = transformers.AutoModel.from_config(model.shrunk().config()).eval()
    ids = torch.full((1, 8), 5)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    times = []
    with torch.inference_mode():
        for _ in range(rounds + 2):
            started = time.perf_counter()
            built(input_ids=ids, attention_mask=mask)
            times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def tokenized_per_second(rounds: int) -> float:
    """Texts of 256 tokens that one core tokenises in a second, by MiniLM's tokenizer."""
    from ultimate_embedder.models import load_encoder, resolve_model

    encoder = load_encoder(resolve_model("all-minilm-l6-v2"), "float32", "cpu")
    words = ("memory", "of", "a", "device", "is", "measured", "before", "and", "after", "every", "batch", ",")
    texts = [" ".join(words[(n + k) % len(words)] for k in range(250)) for n in range(512)]
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        encoder.tokenize(texts)
        times.append(time.perf_counter() - started)
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


def expect(model: Model, key: str, cards: int, host: dict[str, float]) -> Expectation:
    from ultimate_embedder.devices.cards import find_card

    card = find_card(key)
    assert card is not None
    dtype = "bfloat16" if card.capability >= (8, 0) else "float16"
    cost = count(model, dtype)
    launch = host["launch_s"] + cost.calls * LAUNCH_ON_HOST_S
    by_host = {"launching": ROWS / launch, "tokenising": host["tokenized_per_core"] * (KAGGLE_CORES - 1)}
    found = {}
    for word, (of_rate, of_bandwidth) in EFFICIENCY.items():
        seconds = cost.seconds(card.half_flops * of_rate, card.bandwidth * of_bandwidth, LAUNCH_ON_CARD_S)
        rates = {"the card": cards * ROWS / seconds, **by_host}
        found[word] = min(rates.items(), key=lambda rate: rate[1])
    limits = dict.fromkeys(limit for limit, _ in found.values())
    return Expectation(
        model.name, f"{cards} x {card.name}", dtype, found["low"][1], found["high"][1], " or ".join(limits)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path("build/real-cards.json"))
    options = parser.parse_args()
    tokenized = tokenized_per_second(options.rounds)
    print(f"one core tokenises {tokenized:.0f} texts of 256 tokens per second\n")
    rows, counts = [], []
    print("| model | kernels per batch | TFLOP | GB moved | host, ms |\n|---|---|---|---|---|")
    for model in MODELS:
        host = {"launch_s": launch_seconds(model, options.rounds), "tokenized_per_core": tokenized}
        cost = count(model, "float16")
        counts.append(
            {"model": model.name, "calls": cost.calls, "flops": cost.flops, "bytes": cost.moved_bytes, **host}
        )
        milliseconds = (host["launch_s"] + cost.calls * LAUNCH_ON_HOST_S) * 1e3
        print(
            f"| {model.name} | {cost.calls} | {cost.flops / 1e12:.2f} | {cost.moved_bytes / 1e9:.1f} | {milliseconds:.1f} |"
        )
        rows += [expect(model, key, cards, host) for key, cards in SETUPS]
    print("\n| model | cards | dtype | texts/s of 256 tokens | limited by |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.model} | {row.cards} | {row.dtype} | {row.low:,.0f} to {row.high:,.0f} | {row.limit} |")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"counted": counts, "expected": [asdict(row) for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
