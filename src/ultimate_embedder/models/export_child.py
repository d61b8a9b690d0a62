"""The child that exports models: makes a graph, compares it with torch, and writes down that it did."""

from __future__ import annotations

import numpy as np

from ultimate_embedder.errors import ModelError, UltimateEmbedderError
from ultimate_embedder.machine import has_vnni
from ultimate_embedder.messages import claim_pipes, leave, read_message, write_message
from ultimate_embedder.models.attention import eager_attention
from ultimate_embedder.models.canary import CANARY, row_cosines
from ultimate_embedder.models.encoder import Encoder, fused_if_equal, load_encoder
from ultimate_embedder.models.exported import GraphWish, Made, write_record
from ultimate_embedder.models.fused import read_checked
from ultimate_embedder.models.int8 import group_size, usual_way
from ultimate_embedder.models.runtimes import RUNTIMES
from ultimate_embedder.models.runtimes.balance import SAMPLE
from ultimate_embedder.models.runtimes.export import EXPORT_ERRORS, export_onnx, quantize_onnx

LEAST_COSINE = {"float32": 0.9999, "int8": 0.9}  # of the worst canary text; less means that the export is wrong


def main() -> None:
    """Answer every wish."""
    stdin, channel = claim_pipes()
    while (wish := read_message(stdin)) is not None:
        write_message(channel, attempt(wish))


def attempt(wish: GraphWish) -> Made:
    """Make a graph in this process."""
    try:
        make_graph(wish)
    except UltimateEmbedderError as error:
        return Made(str(error))
    return Made()


def make_graph(wish: GraphWish) -> None:
    """Export the model, in int8 if that is wished, and compare it with torch; raises `ModelError`."""
    encoder = load_encoder(wish.model, "float32", "cpu", wish.max_tokens, wish.trusted, token_cap=wish.token_cap)
    if not encoder.tokenizes:
        raise ModelError(
            f"--backend {wish.backend}: {wish.model.name} needs inputs that cannot be exported. Use --backend torch."
        )
    try:
        # what runtimes know and compute as one: OpenVINO takes two fifths of the time for it
        with eager_attention(encoder.model):
            _export(encoder, wish)
        divisor, worst = _quantize_and_compare(encoder, wish)
    except (ModelError, ValueError):  # it differs, or the model has no such attention
        _export(encoder, wish)
        divisor, worst = _quantize_and_compare(encoder, wish)
    write_record(wish, divisor, worst)
    if read_checked(wish.model.digest) is None:  # what is remembered then lets runs do without these imports
        fused_if_equal(encoder.model, wish.model, wish.max_tokens, wish.token_cap)


def _export(encoder: Encoder, wish: GraphWish) -> None:
    wish.folder.mkdir(parents=True, exist_ok=True)
    wish.record.unlink(missing_ok=True)
    example = encoder.batch(encoder.tokenize(CANARY), np.arange(len(CANARY))).features
    try:
        export_onnx(encoder.transformer, example, encoder.tokenizer.input_names, wish.plain)
    except EXPORT_ERRORS as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"--backend {wish.backend}: {wish.model.name} cannot be exported ({first}). Use --backend torch."
        ) from error


def _quantize_and_compare(encoder: Encoder, wish: GraphWish) -> tuple[int, float]:
    """The divisor of inner sizes, and the worst cosine with torch."""
    divisor = _quantize(encoder, wish) if wish.int8 else 0
    return divisor, _compare(encoder, wish, divisor)


def _quantize(encoder: Encoder, wish: GraphWish) -> int:
    """Write the graph in int8; gives the divisor of its inner sizes."""
    if wish.backend == "openvino":
        from ultimate_embedder.models.runtimes.int8_weights import write_int8_graph

        return write_int8_graph(wish.plain, wish.path, _examples(encoder))
    quantize_onnx(wish.plain, wish.path)
    return 0


def _examples(encoder: Encoder) -> list[dict[str, np.ndarray]]:
    """Inputs of the graph, one text each, as padding would count as text."""
    texts, names = encoder.tokenize(SAMPLE), encoder.tokenizer.input_names
    batches = [encoder.batch(texts, np.array([row])).features for row in range(len(SAMPLE))]
    return [{name: features[name].numpy() for name in names} for features in batches]


def _compare(encoder: Encoder, wish: GraphWish, divisor: int) -> float:
    """The cosine of the text that differs most from torch; raises if that is too much."""
    way = usual_way(wish.backend, has_vnni=has_vnni()) if wish.int8 else None
    group = group_size(way, divisor) if way else 0
    runtime = RUNTIMES[wish.backend](wish.path, wish.dtype, group)
    other, texts = encoder.with_runtime(runtime), encoder.tokenize(CANARY)
    worst = 1.0
    for rows in (np.arange(len(CANARY)), np.array([0])):  # with padding, and without
        reference = encoder.forward(encoder.batch(texts, rows)).numpy()
        ours = other.forward(other.batch(texts, rows)).numpy()
        cosine = float(row_cosines(ours, reference).min())
        if not cosine >= LEAST_COSINE[wish.dtype]:  # also NaN
            raise ModelError(
                f"--backend {wish.backend}: the exported {encoder.name} differs from torch (cosine {cosine:.4f}). "
                "Use --backend torch."
            )
        worst = min(worst, cosine)
    return worst


if __name__ == "__main__":
    main()
    leave(0)
