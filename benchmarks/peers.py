"""Vectors per second, compared with other programs: same texts, same machine, interleaved rounds.

    make bench-quick      # under 3 minutes: sentence-transformers, ONNX Runtime by hand, ours
    make bench            # all peers, each in its own process, those with other requirements in venvs of their own
    python benchmarks/peers.py --model DIR    # another model of 384 dimensions and 6 layers, such as granite-embedding-30m

Prints a table and writes build/bench/peers.json and a plot.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contender import CONTENDERS
from benchmarks.measure import BUILD, ROOT, Watched, machine, make_texts, read_texts, sgemm_gflops, watch
from benchmarks.plot import bars
from ultimate_embedder.models import Encoder, load_encoder, load_on_backend, resolve_model, row_cosines
from ultimate_embedder.models.exported import GraphWish

REFERENCE = "sentence-transformers"
ONCE = ("embed-anything",)  # in the first round only: it takes thirty times as long as the others
QUICK = ("ours", "ours, --precision int8", REFERENCE, "onnxruntime by hand")
TORCH = next(line for line in (ROOT / "constraints.txt").read_text().split() if line.startswith("torch=="))
# what pip installs into the venv of a peer, call by call
OWN_VENV = {
    "fastembed": [["fastembed"]],
    "embed-anything": [["embed-anything", "numpy"]],
    "model2vec": [[TORCH], [TORCH, "model2vec[distill,quantization]"]],
    # its own requirements exclude current torch; these are the versions that it runs with
    "infinity (torch)": [
        [TORCH, "transformers<4.49", "sentence-transformers<4", "huggingface-hub<1", "optimum<2"],
        ["--no-deps", "infinity-emb"],
        [
            "orjson",
            "fastapi",
            "typer",
            "rich",
            "prometheus-fastapi-instrumentator",
            "hf_transfer",
            "posthog",
            "uvicorn",
            "diskcache",
        ],
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few texts, few peers")
    parser.add_argument("--texts", type=int, help="how many to generate (default: 1500, quick: 300)")
    parser.add_argument("--chunks", type=Path, help="a chunk folder, instead of generated texts")
    parser.add_argument("--rounds", type=int, help="(default: 5, quick: 2)")
    parser.add_argument("--model", default="all-minilm-l6-v2", help="a name or a folder (default: %(default)s)")
    parser.add_argument("--only", default="", help="contenders, with semicolons between; always with " + REFERENCE)
    parser.add_argument("--without", default="", help="contenders to leave out, with semicolons between")
    parser.add_argument("--plot", type=Path, help="write an SVG there too")
    options = parser.parse_args()
    texts = (
        read_texts(options.chunks) if options.chunks else make_texts(options.texts or (300 if options.quick else 1500))
    )
    names = [name for name in CONTENDERS if not options.quick or name in QUICK]
    if options.only:
        names = [name for name in CONTENDERS if name in (REFERENCE, *_listed(options.only))]
    names = [name for name in names if name not in _listed(options.without)]
    pythons = {name: python for name in names if (python := _python(name))}
    result = measure(texts, pythons, options.rounds or (2 if options.quick else 5), options.model)
    (BUILD / "peers.json").write_text(json.dumps(result, indent=2))
    print_table(result)
    if options.plot:
        # those with vectors of this model: a static one is a hundred times as fast, and no bar beside it could be seen
        rows = [(row["name"], row["ratio"]) for row in result["rows"] if not np.isnan(row["mean_cosine"])]
        bars(options.plot, "texts per second, sentence-transformers = 1", rows, result["limit_ratio"], "sgemm limit")


def _listed(names: str) -> list[str]:
    listed = [name.strip() for name in names.split(";") if name.strip()]
    if unknown := [name for name in listed if name not in CONTENDERS]:
        sys.exit(f"no contender is called {unknown[0]!r}; there are: {'; '.join(CONTENDERS)}")
    return listed


def measure(texts: list[str], pythons: dict[str, str], rounds: int, name: str) -> dict[str, Any]:
    """Run every contender once per round, and measure the limit of the machine."""
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "texts.json").write_text(json.dumps(texts))
    model = model_folder(name)
    encoder = load_encoder(resolve_model(str(model)), "float32", "cpu")
    lengths = encoder.tokenize(texts).lengths
    runs, limits, failed = _run_rounds(pythons, rounds, model)
    gflops = {kind: statistics.median(limit[kind] for limit in limits) for kind in limits[0]}
    limit_s = forward_gflop(encoder, lengths) / max(gflops.values())
    base = statistics.median(run.answer["seconds"] for run in runs[REFERENCE])
    rows = [_row(name, each, base, limit_s, lengths) for name, each in runs.items() if each]
    return {
        "machine": machine(),
        "model": encoder.name,
        "texts": len(texts),
        "mean_tokens": float(lengths.mean()),
        "sgemm_gflops": gflops,
        "limit_seconds": limit_s,
        "limit_ratio": base / limit_s,
        "rounds": rounds,
        "failed": failed,
        "rows": sorted(rows, key=lambda row: -row["ratio"]),
    }


def _run_rounds(
    pythons: dict[str, str], rounds: int, model: Path
) -> tuple[dict[str, list[Watched]], list[dict[str, float]], dict[str, str]]:
    """The runs of each contender, the limit of each round, and which could not run, and why."""
    runs: dict[str, list[Watched]] = {name: [] for name in pythons}
    failed: dict[str, str] = {}
    limits = []
    for number in range(rounds):
        limits.append(sgemm_gflops(machine()["cores"]))
        for name, python in pythons.items():
            if name in failed or (name in ONCE and number):
                continue
            file = _vectors_file(name)
            file.parent.mkdir(exist_ok=True)
            script = str(ROOT / "benchmarks" / "contender.py")
            try:
                run = watch([python, script, name, str(model), str(BUILD / "texts.json"), str(file)])
            except RuntimeError as error:
                if name == REFERENCE:
                    raise
                failed[name] = str(error).strip().splitlines()[-1]  # a model that it cannot load, most often
                print(f"  {name}: {error}", file=sys.stderr, flush=True)
                continue
            runs[name].append(run)
            print(f"  {name}: {runs[name][-1].answer['seconds']:.2f} s", file=sys.stderr, flush=True)
    return runs, limits, failed


def _row(name: str, runs: list[Watched], base_s: float, limit_s: float, lengths: np.ndarray) -> dict[str, Any]:
    seconds = [run.answer["seconds"] for run in runs]
    median = statistics.median(seconds)
    vectors, reference = np.load(_vectors_file(name)), np.load(_vectors_file(REFERENCE))
    # vectors of other dimensions cannot be compared
    cosines = row_cosines(vectors, reference) if vectors.shape == reference.shape else np.array([np.nan])
    return {
        "name": name,
        "seconds": seconds,
        "ratio": base_s / median,
        "texts_per_second": len(lengths) / median,
        "tokens_per_second": int(lengths.sum()) / median,
        "share_of_limit": limit_s / median,
        "cpu_seconds": statistics.median(run.cpu_seconds for run in runs),
        "peak_mb": statistics.median(run.peak_mb for run in runs),
        "worst_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
    }


def _vectors_file(name: str) -> Path:
    return BUILD / "vectors" / f"{list(CONTENDERS).index(name)}.npy"


def print_table(result: dict[str, Any]) -> None:
    """Print one row per contender, the fastest first."""
    print(
        f"{result['model']}: {result['texts']} texts, {result['mean_tokens']:.0f} tokens on average, {result['rounds']} rounds, interleaved"
    )
    print(
        f"{'':34}{'ratio':>6}{'texts/s':>9}{'tokens/s':>10}{'s (median, range)':>26}{'% limit':>9}{'CPU s':>7}{'MB':>7}  cosine worst, mean"
    )
    for row in result["rows"]:
        seconds = row["seconds"]
        took = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(
            f"{row['name']:34}{row['ratio']:>6.2f}{row['texts_per_second']:>9.1f}{row['tokens_per_second']:>10,.0f}{took:>26}"
            f"{row['share_of_limit'] * 100:>8.0f}%{row['cpu_seconds']:>7.0f}{row['peak_mb']:>7.0f}"
            f"  {row['worst_cosine']:.5f}, {row['mean_cosine']:.5f}"
        )
    for name, reason in result["failed"].items():
        print(f"{name:34}failed: {reason}")
    rates = ", ".join(f"{kind} {rate:.0f}" for kind, rate in result["sgemm_gflops"].items())
    print(
        f"sgemm limit: {rates} GFLOP/s; of the fastest {result['limit_seconds']:.2f} s, ratio {result['limit_ratio']:.2f}"
    )


def forward_gflop(encoder: Encoder, lengths: np.ndarray) -> float:
    """All products that texts of these token lengths need, attention included and padding not."""
    config = encoder.transformer.config
    hidden, inner = config.hidden_size, config.intermediate_size
    tokens, squares = int(lengths.sum()), int((lengths.astype("int64") ** 2).sum())
    per_layer = tokens * 2 * (4 * hidden * hidden + 2 * hidden * inner) + squares * 4 * hidden
    return float(config.num_hidden_layers * per_layer / 1e9)


def model_folder(name: str = "all-minilm-l6-v2") -> Path:
    """A model with an ONNX file beside its weights, as peers want it."""
    model = resolve_model(name)
    folder = BUILD / model.name
    if not (folder / "model.onnx").exists():
        shutil.copytree(model.path, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
        load_on_backend(model, "onnx")
        shutil.copy(GraphWish(model, "onnx", int8=False).path, folder / "model.onnx")
    return folder


def _python(name: str) -> str | None:
    """The interpreter of a contender; its venv is made when it is first wanted."""
    if name not in OWN_VENV:
        return sys.executable
    venv = ROOT / "build" / "peers" / name.partition(" ")[0]
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        if any(subprocess.run([*install, *packages], check=False).returncode for packages in OWN_VENV[name]):
            shutil.rmtree(venv)
            print(f"  {name} cannot be installed here and is skipped", file=sys.stderr)
            return None
    return str(python)


if __name__ == "__main__":
    main()
