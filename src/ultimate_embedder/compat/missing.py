"""A companion that is missing: which option goes on without it, in the words of the surface that the user sees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ultimate_embedder.config import RunConfig
from ultimate_embedder.errors import MissingModelError, ModelError
from ultimate_embedder.models import find_spec

ENGINE_OPTION = "--allow-missing-companions"


@contextlib.contextmanager
def name_option(option: str, config: RunConfig) -> Iterator[None]:
    """Have an error about a missing companion name `option`, which allows it."""
    try:
        yield
    except ModelError as error:
        message = str(error).replace(ENGINE_OPTION, option)
        if option not in message and isinstance(error, MissingModelError) and not _is_primary(error.model, config):
            message += f" To go on without it: {option}."
        error.args = (message,)
        raise


def _is_primary(model: str, config: RunConfig) -> bool:
    first = config.models[0].name
    spec = find_spec(first)
    return model in ((spec.key, spec.hub_id) if spec else (first,))
