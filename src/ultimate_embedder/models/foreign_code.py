"""What in a model's folder would run code that is not part of sentence-transformers or transformers when it is loaded.

These libraries import whatever a configuration names: classes of modules, tokenizers and activations, files beside the
model, kernels and base models from elsewhere. Here the configurations are read, and nothing is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.config_files import MODULES, module_folder, read_json, read_modules
from ultimate_embedder.models.hub_cache import read_index
from ultimate_embedder.models.paths import shown

# the classes of sentence-transformers that a model may name, in all versions from 5.4. Others in its packages could be
# whatever it imports, such as torch, whose `load` would be called
MODULE_CLASSES = frozenset([
    "Asym", "BoW", "CLIPModel", "CNN", "Dense", "Dropout", "LSTM", "LayerNorm", "LogitScore", "MLMTransformer",
    "MultiVectorMask", "Normalize", "Pooling", "Router", "SparseAutoEncoder", "SparseStaticEmbedding", "SpladePooling",
    "StaticEmbedding", "TokenPooling", "Transformer", "WeightedLayerPooling", "WordEmbeddings", "WordWeights",
])  # fmt: skip
WORD_TOKENIZERS = frozenset(["PhraseTokenizer", "WhitespaceTokenizer", "WordTokenizer"])
PARTS = "base|sentence_transformer|sparse_encoder|cross_encoder|multi_vector_encoder"
IN_LIBRARY = re.compile(
    rf"sentence_transformers(\.({PARTS}))?\.(modules|models)(\.tokenizer)?(\.[A-Za-z_]\w*)?\.(?P<name>\w+)"
)
ACTIVATION = re.compile(r"torch\.nn(\.modules\.(activation|linear))?\.[A-Z]\w*")
PLAIN_CLASS = re.compile(r"[A-Za-z_]\w*")  # looked up in transformers itself

ACTIVATION_KEYS = ("activation_function", "activation_fn", "sbert_ce_default_activation_function")
CLASS_KEYS = (
    "tokenizer_class", "processor_class", "image_processor_type", "feature_extractor_type", "video_processor_type",
)  # fmt: skip
ELSEWHERE_KEYS = ("tokenizer_name_or_path", "model_name_or_path", "processor_name", "cache_dir")
SAFE_LOADING_KEYS = ("weights_only", "use_safetensors")
ADAPTER = "adapter_config.json"
DEEPEST_ROUTER = 8

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# written by trainers and by OpenVINO; nothing here opens them
INERT = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|trainer_state|openvino_model)\b.*|rng_state.*")
WEIGHTS, WEIGHTS_INDEX, PICKLED_WEIGHTS = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


def code_findings(folder: Path) -> Iterator[str]:
    """Yield what would run foreign code, each as a phrase that begins with the file."""
    for part, found in _parts(folder):
        if found:
            yield found
        for path in _files(part):
            name = path.name.lower()  # on some disks Config.json is config.json
            where = path.relative_to(folder).as_posix()
            if name == ADAPTER:
                yield f"{where} makes it an adapter of another model, which would be loaded unchecked"
            elif name.endswith(".index.json"):
                yield from _in_index(path, where)
            elif name.endswith(".json") and "config" in name:
                # what sentence-transformers calls the transformer with, beside its own configuration
                yield from _in_config(read_json(path), where, is_arguments=name.startswith("sentence_"))


def unsafe_pickles(folder: Path) -> Iterator[str]:
    """Yield the pickles that would be loaded, as there are no safetensors beside them."""
    for part, _ in _parts(folder):
        files = _files(part)
        safe = {path.name for path in files if path.name in (WEIGHTS, WEIGHTS_INDEX) and path.is_file()}
        # an index is read by transformers alone: other modules would take the pickle beside it
        loaded = set() if WEIGHTS in safe else {PICKLED_WEIGHTS} if safe else {path.name for path in files}
        yield from (
            path.relative_to(folder).as_posix() for path in files if path.name in loaded and is_pickle(path.name)
        )


def is_pickle(name: str) -> bool:
    """Whether a file is one with weights in a format that can run code."""
    path = PurePosixPath(name.lower())
    return path.suffix in PICKLES and not INERT.fullmatch(path.name)


def _files(part: Path) -> list[Path]:
    try:
        return sorted(part.iterdir()) if part.is_dir() else []
    except OSError as error:
        raise ModelError(f"{part} cannot be read: {error}") from error


def _parts(folder: Path) -> Iterator[tuple[Path, str]]:
    """The folders that are loaded from, the model's own and its modules', with what is wrong with their class."""
    yield folder, ""
    for module in read_modules(folder):
        part = module_folder(folder, folder / MODULES, module.path)
        yield part, _class_problem(MODULES, module.type)
        yield from _routes(folder, part)


def _routes(folder: Path, part: Path, depth: int = 0) -> Iterator[tuple[Path, str]]:
    """The modules inside of a module that chooses between several."""
    for name in ("router_config.json", "config.json"):
        described = read_json(part / name)
        types = described.get("types") if isinstance(described, dict) else None
        if not isinstance(types, dict):
            continue
        where = (part / name).relative_to(folder).as_posix()
        if depth == DEEPEST_ROUTER:
            raise ModelError(f"{part / name} is damaged (modules are nested too deeply). Copy the model again.")
        for subfolder, class_name in types.items():
            inner = module_folder(part, part / name, subfolder)
            yield inner, _class_problem(where, class_name)
            if inner.resolve() != part.resolve():
                yield from _routes(folder, inner, depth + 1)


def _class_problem(where: str, name: Any, known: frozenset[str] = MODULE_CLASSES) -> str:
    found = IN_LIBRARY.fullmatch(name) if isinstance(name, str) else None
    if found and found["name"] in known:
        return ""
    return f"{where} names the class {shown(name)}"


def _in_index(path: Path, where: str) -> Iterator[str]:
    other = [name for name in read_index(path) if not name.endswith(".safetensors")]
    if other and path.name.lower().endswith(".safetensors.index.json"):
        yield f"{where} names {shown(other[0])}, which is not safetensors"


def _in_config(described: Any, where: str, is_arguments: bool) -> Iterator[str]:
    """Yield what in a configuration, at any depth, names code."""
    waiting = [described]  # not recursive: depth is the file's choice
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            for key, inner in value.items():
                if problem := _entry_problem(key, inner, is_arguments):
                    yield f"{where} has {problem}"


def _entry_problem(key: str, value: Any, is_arguments: bool) -> str | None:
    """Why an entry of a configuration would run code, or None."""
    entry = f"{shown(key)}: {shown(value)}"
    if key == "auto_map" and value:
        return f"{entry}, code of its own"
    if key in ACTIVATION_KEYS and isinstance(value, str) and "." in value and not ACTIVATION.fullmatch(value):
        return f"{entry}, a function from elsewhere"
    if key in CLASS_KEYS and isinstance(value, str) and not PLAIN_CLASS.fullmatch(value):
        return entry if _class_problem("", value, WORD_TOKENIZERS) else None
    if key.endswith("implementation") and any("/" in name for name in _strings(value)):
        return f"{entry}, a kernel that would be downloaded"
    if is_arguments and key in ELSEWHERE_KEYS and value:
        return f"{entry}, files from elsewhere"
    if key in SAFE_LOADING_KEYS and value is not None and value is not True:
        return f"{entry}, which switches off safe loading"
    if key == "transformers_weights" and value and not _is_safetensors(value):
        return f"{entry}, which is not safetensors"
    if key == "use_pretrained_backbone" and value:
        return f"{entry}, weights of another model"
    if is_arguments and key != "chat_template" and isinstance(value, str) and re.search(r"[/\\]", value):
        return f"{entry}, a path"
    return None


def _is_safetensors(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+\.safetensors(\.index\.json)?", name) is not None


def _strings(value: Any) -> list[str]:
    """A string, or those in an object."""
    values = value.values() if isinstance(value, dict) else [value]
    return [each for each in values if isinstance(each, str)]
