"""A model in the role that a pass has for it: for documents, or for queries."""

from __future__ import annotations

from typing import TypeVar

from ultimate_embedder.models import LoadedModel
from ultimate_embedder.planning import PassPlan

AnyModel = TypeVar("AnyModel", bound=LoadedModel)


def in_role(model: AnyModel, plan: PassPlan) -> AnyModel:
    """The model with the prompt of the pass; what is loaded and placed on devices serves documents and queries."""
    return model.for_queries() if plan.queries else model
