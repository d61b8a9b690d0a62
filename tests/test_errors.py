"""Errors reach other processes as they are."""

from __future__ import annotations

import pickle

import pytest

from ultimate_embedder.errors import (
    DownloadError,
    MissingModelError,
    ModelError,
    UltimateEmbedderError,
    UsageError,
    forget_frames,
    traceback_of,
)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("an option"),
        ModelError("a model"),
        MissingModelError("bge-m3", "is not on this machine"),
        MissingModelError("bge-m3", "is not on this machine").as_companion(),
        DownloadError("bge-m3", "cannot look up BAAI/bge-m3: 404 Not Found."),
        DownloadError("bge-m3", "cannot look up BAAI/bge-m3: 404 Not Found.").as_companion(),
    ],
    ids=lambda error: f"{type(error).__name__}{' of a companion' * getattr(error, 'companion', False)}",
)
def test_an_error_can_be_pickled(error: UltimateEmbedderError) -> None:
    read = pickle.loads(pickle.dumps(error))
    assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))


def test_a_pickled_error_keeps_the_traceback_that_was_kept_as_text() -> None:
    error = MissingModelError("bge-m3", "is not on this machine")
    forget_frames(error)
    assert traceback_of(pickle.loads(pickle.dumps(error))) == traceback_of(error)


def test_only_the_error_about_a_companion_names_the_option_that_does_without() -> None:
    option = "or continue without it: --allow-missing-companions."
    for error in (MissingModelError("bge-m3", "is not here"), DownloadError("bge-m3", "cannot look up bge-m3: 404.")):
        assert "--allow-missing-companions" not in str(error)
        assert str(error.as_companion()).endswith(option)
        assert ".." not in str(error.as_companion())
