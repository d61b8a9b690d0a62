"""Let this process use a local hub: the client has read where the hub is when it was imported."""

from __future__ import annotations

import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
import transformers.dynamic_module_utils

PATIENT = {"ULTIMATE_EMBEDDER_RETRY_FIRST_WAIT_S": "0.05", "ULTIMATE_EMBEDDER_RETRY_TOTAL_S": "120"}


def use_hub_here(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Talk to the hub at `url` and to no other, with short time-outs; code of models goes below `folder`."""
    for name, value in {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": url, **PATIENT}.items():
        monkeypatch.setenv(name, value)
    constants = {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DOWNLOAD_TIMEOUT": 2,
        "HF_HUB_ETAG_TIMEOUT": 2,
    }
    for name, constant in constants.items():
        monkeypatch.setattr(huggingface_hub.constants, name, constant)
    keep_own_code_below(folder, monkeypatch)


def keep_own_code_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of models is copied below `folder`, whatever models with such code were loaded before."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    modules = str(folder / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
    monkeypatch.syspath_prepend(modules)
