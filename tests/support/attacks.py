"""Folders of models that run code when they are loaded, made from a harmless one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.attack_code import LEAVE_MARKER, Payload

EVIL = "tests.support.attack_code.Evil"
DENSE = "sentence_transformers.models.Dense"


def change(folder: Path, name: str, **entries: Any) -> None:
    """Add entries to a JSON file."""
    path = folder / name
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(before | entries))


def add_module(folder: Path, path: str, class_name: str, **config: Any) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": path, "type": class_name})
    (folder / "modules.json").write_text(json.dumps(modules))
    if config:
        change(folder, f"{path}/config.json", **config)


def module_of_the_folder(folder: Path) -> None:
    (folder / "evil.py").write_text(f"{LEAVE_MARKER}\nclass Module: pass\n")
    add_module(folder, "3_Evil", "evil.Module")


def module_of_another_package(folder: Path) -> None:
    add_module(folder, "3_Evil", EVIL)


def import_of_the_library(folder: Path) -> None:
    add_module(folder, "3_Evil", "sentence_transformers.base.modules.module.torch")


def _auto_map(folder: Path, name: str, kind: str, **around: Any) -> None:
    (folder / "evil.py").write_text(f"{LEAVE_MARKER}\nclass Class: pass\n")
    change(folder, name, **(around or {"auto_map": {kind: "evil.Class"}}))


def configuration(folder: Path) -> None:
    _auto_map(folder, "config.json", "AutoConfig")


def configuration_of_a_part(folder: Path) -> None:
    _auto_map(folder, "config.json", "", text_config={"inner": [{"auto_map": {"AutoModel": "evil.Class"}}]})


def tokenizer(folder: Path) -> None:
    _auto_map(folder, "tokenizer_config.json", "AutoTokenizer", auto_map={"AutoTokenizer": ["evil.Class", None]})


def tokenizer_class(folder: Path) -> None:
    change(folder, "tokenizer_config.json", tokenizer_class=EVIL)


def processor(folder: Path) -> None:
    _auto_map(folder, "preprocessor_config.json", "AutoProcessor")


def activation(folder: Path) -> None:
    add_module(folder, "3_Dense", DENSE, in_features=64, out_features=8, activation_function=EVIL)


def activation_inside_torch(folder: Path) -> None:
    add_module(
        folder, "3_Dense", DENSE, in_features=64, out_features=8, activation_function="torch.distributed.run.main"
    )


def route(folder: Path) -> None:
    config = {"types": {"x": EVIL}, "structure": {"query": ["x"]}, "parameters": {"default_route": "query"}}
    add_module(folder, "3_Router", "sentence_transformers.models.Router", **config)


def word_tokenizer(folder: Path) -> None:
    add_module(folder, "3_Words", "sentence_transformers.models.WordEmbeddings")
    change(folder, "3_Words/wordembedding_config.json", tokenizer_class=EVIL, update_embeddings=False)


def score_activation(folder: Path) -> None:
    change(folder, "config.json", sentence_transformers={"activation_fn": EVIL})


def kernel(folder: Path) -> None:
    change(folder, "config.json", _attn_implementation="somebody/evil-kernel")


def adapter(folder: Path) -> None:
    change(folder, "adapter_config.json", base_model_name_or_path="/somewhere", peft_type="LORA")


def pickle_of_a_module(folder: Path) -> None:
    add_module(folder, "3_Dense", DENSE, in_features=64, out_features=8)
    (folder / "3_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def pickle_of_the_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def pickle_behind_an_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "evil.bin").write_bytes(pickle.dumps(Payload()))
    change(
        folder,
        "model.safetensors.index.json",
        metadata={},
        weight_map={"embeddings.word_embeddings.weight": "evil.bin"},
    )
    change(folder, "sentence_bert_config.json", model_args={"weights_only": False})


def pickle_beside_an_index(folder: Path) -> None:
    pickle_of_a_module(folder)
    change(folder, "3_Dense/model.safetensors.index.json", metadata={}, weight_map={})


def pickle_beside_a_folder(folder: Path) -> None:
    pickle_of_a_module(folder)
    (folder / "3_Dense" / "model.safetensors").mkdir()


def pickle_by_arguments(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    change(folder, "sentence_bert_config.json", model_args={"use_safetensors": False, "weights_only": False})


def tokenizer_from_elsewhere(folder: Path) -> None:
    change(folder, "sentence_bert_config.json", tokenizer_name_or_path="somewhere-else")


def path_in_arguments(folder: Path) -> None:
    change(folder, "sentence_bert_config.json", model_args={"gguf_file": "../../other/model.gguf"})


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    attack.__name__: (attack, file)
    for attack, file in [
        (module_of_the_folder, "modules.json names the class 'evil.Module'"),
        (module_of_another_package, f"modules.json names the class '{EVIL}'"),
        (import_of_the_library, "modules.json names the class"),
        (configuration, "config.json has 'auto_map'"),
        (configuration_of_a_part, "config.json has 'auto_map'"),
        (tokenizer, "tokenizer_config.json has 'auto_map'"),
        (tokenizer_class, "tokenizer_config.json has 'tokenizer_class'"),
        (processor, "preprocessor_config.json has 'auto_map'"),
        (activation, "3_Dense/config.json has 'activation_function'"),
        (activation_inside_torch, "3_Dense/config.json has 'activation_function'"),
        (route, f"3_Router/config.json names the class '{EVIL}'"),
        (word_tokenizer, "3_Words/wordembedding_config.json has 'tokenizer_class'"),
        (score_activation, "config.json has 'activation_fn'"),
        (kernel, "config.json has '_attn_implementation'"),
        (adapter, "adapter_config.json makes it an adapter"),
        (pickle_of_a_module, "3_Dense/pytorch_model.bin are a pickle"),
        (pickle_of_the_model, "pytorch_model.bin are a pickle"),
        (pickle_beside_an_index, "3_Dense/pytorch_model.bin are a pickle"),
        (pickle_beside_a_folder, "3_Dense/pytorch_model.bin are a pickle"),
        (pickle_behind_an_index, "model.safetensors.index.json names 'evil.bin'"),
        (pickle_by_arguments, "sentence_bert_config.json has 'use_safetensors'"),
        (tokenizer_from_elsewhere, "sentence_bert_config.json has 'tokenizer_name_or_path'"),
        (path_in_arguments, "sentence_bert_config.json has 'gguf_file'"),
    ]
}
"""Each attack, and what the error about it must say."""
