"""`--precision int8` on this CPU, measured against what it should reach: speed, cosines, retrieval, memory.

    make bench-int8
    make bench-int8 ARGS="--model all-minilm-l6-v2 MODEL_DIR --data CRANFIELD_DIR COSQA_DIR"

Speed and memory are those of whole processes beside sentence-transformers', in interleaved rounds (benchmarks/peers.py);
cosines are with sentence-transformers' vectors of the same texts. A folder of `--data` has a judged collection in BEIR's
form (corpus.jsonl, queries.jsonl, qrels.tsv), for nDCG@10 against fp32. A CPU without VNNI is refused.

Prints what was found and writes build/bench/int8.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import BUILD, machine, make_texts, read_texts
from benchmarks.peers import REFERENCE, measure, print_table
from benchmarks.retrieval import Judged, compare, encode_judged, read_judged
from ultimate_embedder.machine import VNNI_FLAGS, has_vnni, processor_flags
from ultimate_embedder.models import (
    Encoder,
    has_native_int8,
    load_encoder,
    load_native_int8,
    load_on_backend,
    possible_ways,
    resolve_model,
    suits_native_int8,
)
from ultimate_embedder.models.int8 import OPENVINO, TORCH
from ultimate_embedder.types import ResolvedModel

OURS = "ours, --precision int8"
BY_OPENVINO = "ours, int8 by openvino"
BF16 = "ours, --precision bf16"  # beside it: as fast on some processors, and nearer to fp32
TEXTS, ROUNDS = 738, 5
RATIO, MEAN, WORST, NDCG = 2.8, 0.999, 0.998, 0.002


@dataclass(frozen=True)
class Figure:
    """What was found, and what it should be at least, or at most."""

    model: str
    what: str
    found: float
    asked: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether it is."""
        return self.found <= self.asked if self.at_most else self.found >= self.asked

    def __str__(self) -> str:
        limit = "at most" if self.at_most else "at least"
        verdict = "reached" if self.reached else "not reached"
        return f"{self.model:32} {self.what:52} {self.found:8.4f}  asked: {limit} {self.asked:<6} {verdict}"


def main() -> None:
    options = parse(sys.argv[1:])
    flags = sorted((processor_flags() or frozenset()) & VNNI_FLAGS)
    if not has_vnni() and not options.anyway:
        sys.exit(
            "This CPU has no VNNI, the instructions for int8: products would be computed in fp32, and the figures would "
            "say nothing. Run it on a CPU with avx512_vnni or avx_vnni in /proc/cpuinfo, or add --anyway."
        )
    texts = read_texts(options.chunks) if options.chunks else make_texts(options.texts)
    collections = [read_judged(folder, most=options.documents) for folder in options.data]
    figures: list[Figure] = []
    found: list[dict[str, Any]] = []
    for name in options.model:
        contenders = [OURS, BY_OPENVINO, *([BF16] if has_bf16() else []), "ours", REFERENCE]
        speed = measure(texts, dict.fromkeys(contenders, sys.executable), options.rounds, name)
        print_table(speed)
        retrieval = [found for judged in collections for found in retrieve(name, judged, options.max_tokens)]
        found.append({"speed": speed, "retrieval": retrieval})
        figures += judge(speed, retrieval)
    print(f"{machine()['processor']}, {' and '.join(flags) or 'no VNNI: times say nothing of int8'}")
    for figure in figures:
        print(figure)
    written = {"machine": machine(), "vnni": flags, "models": found}
    written["figures"] = [{**asdict(each), "reached": each.reached} for each in figures]
    (BUILD / "int8.json").write_text(json.dumps(written, indent=2))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["all-minilm-l6-v2"], help="names or folders (default: MiniLM)")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="judged collections in BEIR's form")
    parser.add_argument("--documents", type=int, help="of each collection: only the first (default: all)")
    parser.add_argument(
        "--texts", type=int, default=TEXTS, help="how many to generate for times (default: %(default)s)"
    )
    parser.add_argument("--chunks", type=Path, help="a chunk folder, instead of generated texts")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of times (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of judged texts (default: %(default)s)")
    parser.add_argument("--anyway", action="store_true", help="also on a CPU without VNNI")
    return parser.parse_args(arguments)


def retrieve(name: str, judged: Judged, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Cosines and nDCG@10 of a collection, in fp32 and in every way of int8; the first is the usual one."""
    model = resolve_model(name)
    in_fp32 = encode_judged(load_encoder(model, "float32", "cpu", max_tokens, may_fuse=True), judged)
    backend = TORCH if has_native_int8() and suits_native_int8(model) else OPENVINO
    for way in possible_ways(backend, has_vnni=has_vnni()):
        in_int8 = encode_judged(load(model, backend, way, max_tokens), judged)
        found = {"data": judged.name, "quantization": way, **compare(in_int8, in_fp32, judged)}
        print(found, file=sys.stderr, flush=True)
        yield found


def load(model: ResolvedModel, backend: str, way: str | None, max_tokens: int) -> Encoder:
    """A model in int8."""
    if backend == TORCH:
        return load_native_int8(model, way or "", max_tokens)
    return load_on_backend(model, OPENVINO, max_tokens, int8=True, way=way)


def has_bf16() -> bool:
    """Whether the processor has fast bf16."""
    return any("bf16" in flag for flag in processor_flags() or ())


def judge(speed: dict[str, Any], retrieval: list[dict[str, Any]]) -> Iterator[Figure]:
    """What was found beside what was asked for."""
    model = speed["model"]
    ours = next(row for row in speed["rows"] if row["name"] == OURS)
    yield Figure(model, f"speed in that of {REFERENCE}", ours["ratio"], RATIO)
    places = [{"data": "texts", **ours}, *retrieval]
    for place in places:
        where = f"{place['data']}, {place['quantization']}" if "quantization" in place else place["data"]
        yield Figure(model, f"{where}: mean cosine", place["mean_cosine"], MEAN)
        yield Figure(model, f"{where}: worst cosine", place["worst_cosine"], WORST)
    for place in retrieval:
        lost = place["ndcg_fp32"] - place["ndcg"]
        where = f"{place['data']}, {place['quantization']}"
        yield Figure(model, f"{where}: nDCG@10 lost (± {place['standard_error']:.4f})", lost, NDCG, at_most=True)


if __name__ == "__main__":
    main()
