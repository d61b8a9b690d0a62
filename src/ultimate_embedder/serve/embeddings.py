"""`POST /v1/embeddings` and `GET /v1/models`, in OpenAI's shape."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.output import Output
from ultimate_embedder.serve.answers import BAD_REQUEST, NOT_FOUND, UNAVAILABLE, ApiError, json_answer, read_object
from ultimate_embedder.serve.catalogue import Catalogue, ServedVector
from ultimate_embedder.serve.encoders import INPUT_TYPES, Encoded, Encoders, InputType
from ultimate_embedder.serve.worker import Worker
from ultimate_embedder.texts import check_texts

MOST_TEXTS = 2048  # as OpenAI has it
OWNER = "ultimate-embedder"
Encoding = Literal["float", "base64"]
FIELDS = ("input", "model", "encoding_format", "dimensions", "input_type", "user")


@dataclass(frozen=True)
class EmbeddingRequest:
    """A valid request."""

    texts: list[str]
    model: str
    encoding: Encoding = "float"
    dimensions: int | None = None
    input_type: InputType = "query"


def parse_request(content: dict[str, Any]) -> EmbeddingRequest:
    """Check what a client sent; raises `ApiError`."""
    if unknown := sorted(set(content) - set(FIELDS)):
        raise _wrong(unknown[0], f"There is no field {unknown[0]!r}. The fields are: {', '.join(FIELDS)}.")
    model = content.get("model")
    if not isinstance(model, str) or not model:
        raise _wrong("model", "'model' must be a name from GET /v1/models.")
    dimensions = content.get("dimensions")
    if dimensions is not None and (not isinstance(dimensions, int) or isinstance(dimensions, bool)):
        raise _wrong("dimensions", "'dimensions' must be a whole number.")
    return EmbeddingRequest(
        texts=_texts(content.get("input")),
        model=model,
        encoding=_one_of(content, "encoding_format", get_args(Encoding)),
        dimensions=dimensions,
        input_type=_one_of(content, "input_type", INPUT_TYPES),
    )


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(BAD_REQUEST, message, param=param)


def _one_of(content: dict[str, Any], name: str, valid: tuple[Any, ...]) -> Any:
    value = content.get(name)
    if value is None:
        return valid[0]
    if value not in valid:
        raise _wrong(name, f"{name!r} must be {' or '.join(map(repr, valid))}.")
    return value


def _texts(given: Any) -> list[str]:
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise _wrong("input", "'input' must be a string, or a list of strings that is not empty.")
    if all(isinstance(each, int) for each in given) or any(isinstance(each, list) for each in given):
        raise _wrong(
            "input",
            "'input' has token ids. Send texts: token ids of another tokenizer mean nothing to this model (in "
            "LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)).",
        )
    if len(given) > MOST_TEXTS:
        raise _wrong("input", f"'input' has {len(given):,} texts. Send {MOST_TEXTS:,} at most per request.")
    try:
        return check_texts(given, "input")
    except UsageError as error:
        raise _wrong("input", str(error)) from error


def check_dimensions(wanted: int | None, vector: ServedVector) -> int | None:
    """The dimension to truncate to; raises `ApiError` if vectors cannot have it."""
    possible = (*vector.shorter_dims, vector.dim)
    if wanted is not None and wanted not in possible:
        known = ", ".join(map(str, possible))
        raise _wrong("dimensions", f"'dimensions' of {vector.name} can be {known}, and not {wanted}.")
    return wanted


class EmbeddingsApi:
    """The endpoints."""

    def __init__(self, output: Output, encoders: Encoders, worker: Worker) -> None:
        self._output = output
        self._encoders = encoders
        self._worker = worker

    async def embed(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        asked = parse_request(await read_object(request))
        vector, done = await self._worker.run(lambda: self._encode(asked))
        return json_answer(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": _written(row, asked.encoding)}
                    for index, row in enumerate(done.vectors)
                ],
                "model": vector.name,
                "usage": {"prompt_tokens": done.tokens, "total_tokens": done.tokens},
                "truncated_inputs": done.truncated,
            }
        )

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        found = await run_in_threadpool(self._catalogue)
        return json_answer({"object": "list", "data": [_model(name, found) for name in found.by_name]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        return json_answer(_model(request.path_params["name"], await run_in_threadpool(self._catalogue)))

    def _encode(self, asked: EmbeddingRequest) -> tuple[ServedVector, Encoded]:
        vector = _find(self._catalogue(), asked.model)
        dim = check_dimensions(asked.dimensions, vector)
        try:
            done = self._encoders.encode(vector, asked.texts, asked.input_type, dim)
        except UltimateEmbedderError as error:  # a model that is not here, or has changed
            raise ApiError(UNAVAILABLE, str(error), param="model", code="model_not_available") from error
        unusable = np.flatnonzero(~np.isfinite(done.vectors).all(axis=1))
        if len(unusable):
            raise _wrong("input", f"{vector.name} gives no usable vector for input[{unusable[0]}]. Leave it out.")
        return vector, done

    def _catalogue(self) -> Catalogue:
        found = self._encoders.catalogue()
        if not found.vectors:
            why = next(iter(found.problems.values()), f"{self._output.folder} has no collections with vectors yet.")
            raise ApiError(UNAVAILABLE, f"{why} Ask again when embed has ended.", code="no_vectors")
        return found


def _find(catalogue: Catalogue, name: str) -> ServedVector:
    vector = catalogue.by_name.get(name)
    if vector is None:
        message = f"There is no model {name!r}.{catalogue.suggestion(name)}"
        raise ApiError(NOT_FOUND, message, param="model", code="model_not_found")
    return vector


def _written(row: np.ndarray, encoding: Encoding) -> Any:
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if encoding == "base64" else row


def _model(name: str, catalogue: Catalogue) -> dict[str, Any]:
    vector = _find(catalogue, name)
    return {
        "id": name,
        "object": "model",
        "created": catalogue.created,
        "owned_by": OWNER,
        "collection": vector.collection,
        "models": [model.name for model in vector.models],
        "dimensions": [*vector.shorter_dims, vector.dim],
    }
