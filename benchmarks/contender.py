"""Run one program on a file of texts, in its own process: prints the seconds and saves the vectors.

python benchmarks/contender.py NAME MODEL TEXTS.json VECTORS.npy
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Result = tuple[Any, float]


def ours(model: str, texts: list[str], **options: Any) -> Result:
    """The whole pass, tokenising and storing included, as the summary has it."""
    from benchmarks.measure import write_chunk_folder
    from ultimate_embedder import embed

    with tempfile.TemporaryDirectory() as scratch:
        chunks = write_chunk_folder(texts, Path(scratch) / "chunks")
        summary = embed(
            chunks, Path(scratch) / "out", models=[model], devices="cpu", exports="npy", quiet=True, **options
        )
        (collection,) = summary.collections
        vectors = np.load(Path(scratch) / "out" / "texts" / "embeddings.npy")
    return vectors, collection.passes[0].seconds


def sentence_transformers(model: str, texts: list[str], processes: int = 0) -> Result:
    """In fp32, also where weights are stored in half precision: at its defaults it is many times slower with those."""
    import torch
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(model, device="cpu", model_kwargs={"dtype": torch.float32})
    pool = loaded.start_multi_process_pool(["cpu"] * processes) if processes else None
    started = time.perf_counter()
    vectors = (
        loaded.encode(texts, show_progress_bar=False, pool=pool)
        if pool
        else loaded.encode(texts, show_progress_bar=False)
    )
    seconds = time.perf_counter() - started
    if pool:
        loaded.stop_multi_process_pool(pool)
    return vectors, seconds


def pools_first(model: str) -> bool:
    """Whether a model's vector is that of the first token, not the mean."""
    return bool(json.loads((Path(model) / "1_Pooling" / "config.json").read_text())["pooling_mode_cls_token"])


def max_tokens(model: str) -> int:
    """The token limit of a model."""
    return int(json.loads((Path(model) / "sentence_bert_config.json").read_text())["max_seq_length"])


def onnxruntime_by_hand(model: str, texts: list[str], batch: int = 32) -> Result:
    """What a notebook does: sort by characters, batches of 32."""
    import onnxruntime
    from tokenizers import Tokenizer

    session = onnxruntime.InferenceSession(str(Path(model) / "model.onnx"), providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.enable_truncation(max_tokens(model))
    tokenizer.enable_padding()
    first = pools_first(model)
    started = time.perf_counter()
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    vectors = np.empty((len(texts), 384), np.float32)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        encoded = tokenizer.encode_batch([texts[row] for row in rows])
        mask = np.array([each.attention_mask for each in encoded])
        inputs = {"input_ids": np.array([each.ids for each in encoded]), "attention_mask": mask}
        inputs |= {"token_type_ids": np.zeros_like(mask)}
        hidden = session.run(None, {name: inputs[name] for name in names})[0]
        pooled = hidden[:, 0] if first else (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        vectors[rows] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return vectors, time.perf_counter() - started


def fastembed(model: str, texts: list[str]) -> Result:
    """With the token limit of the model, which its own registry sets to 128 or less."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local/model",
        pooling=PoolingType.CLS if pools_first(model) else PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local/model"),
        dim=384,
        model_file="model.onnx",
    )
    loaded = TextEmbedding("local/model", specific_model_path=model, cache_dir=str(Path(model).parent))
    loaded.model.tokenizer.enable_truncation(max_tokens(model))
    started = time.perf_counter()
    vectors = np.array(list(loaded.embed(texts)))
    return vectors, time.perf_counter() - started


def infinity(model: str, texts: list[str]) -> Result:
    import asyncio

    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    arguments = EngineArgs(
        model_name_or_path=model, engine="torch", device="cpu", dtype="float32", compile=False, bettertransformer=False
    )

    async def run() -> Result:
        engine = AsyncEmbeddingEngine.from_args(arguments)
        async with engine:
            started = time.perf_counter()
            vectors, _ = await engine.embed(sentences=texts)
            return np.array(vectors), time.perf_counter() - started

    return asyncio.run(run())


def embed_anything(model: str, texts: list[str]) -> Result:
    """It takes models of the hub only: the folder is put where its cache is."""
    import os

    with tempfile.TemporaryDirectory() as scratch:
        cached = Path(scratch) / "hub" / "models--local--model"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs" / "main").write_text("0" * 40)
        (cached / "snapshots").mkdir()
        (cached / "snapshots" / ("0" * 40)).symlink_to(model)
        os.environ["HF_HOME"] = scratch
        import embed_anything as library

        loaded = library.EmbeddingModel.from_pretrained_hf(model_id="local/model")
        started = time.perf_counter()
        found = library.embed_query(texts, embedder=loaded, config=library.TextEmbedConfig(batch_size=32))
        return np.array([each.embedding for each in found]), time.perf_counter() - started


def model2vec(model: str, texts: list[str]) -> Result:
    """A table of word vectors, distilled from the model: the fast end, without attention."""
    from model2vec import StaticModel

    folder = Path(model).with_name(f"{Path(model).name}-model2vec")
    if not folder.exists():  # it takes minutes
        from model2vec.distill import distill

        distill(model_name=model, pca_dims=256).save_pretrained(folder)
    loaded = StaticModel.from_pretrained(folder)
    started = time.perf_counter()
    vectors = loaded.encode(texts)
    return vectors, time.perf_counter() - started


CONTENDERS: dict[str, Callable[[str, list[str]], Result]] = {
    "ours": ours,
    "ours, --backend onnx": lambda model, texts: ours(model, texts, backend="onnx"),
    "ours, --backend openvino": lambda model, texts: ours(model, texts, backend="openvino"),
    "ours, --precision int8": lambda model, texts: ours(model, texts, precision="int8"),
    "ours, int8 by openvino": lambda model, texts: ours(model, texts, precision="int8", backend="openvino"),
    "ours, --precision bf16": lambda model, texts: ours(model, texts, precision="bf16"),
    "sentence-transformers": sentence_transformers,
    "sentence-transformers, pool of 2": lambda model, texts: sentence_transformers(model, texts, 2),
    "onnxruntime by hand": onnxruntime_by_hand,
    "fastembed": fastembed,
    "infinity (torch)": infinity,
    "embed-anything": embed_anything,
    "model2vec": model2vec,
}


def main() -> None:
    name, model, texts, output = sys.argv[1:]
    vectors, seconds = CONTENDERS[name](model, json.loads(Path(texts).read_text("utf-8")))
    np.save(output, np.asarray(vectors, np.float32))
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
