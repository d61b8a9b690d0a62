"""`plan.json` in an output: written by `plan`, read by the next run."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.output import Output
from ultimate_embedder.planned.schema import PROGRAM, Plan
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state


def read_plan(output: Output) -> Plan | Damaged | None:
    """The plan in an output; None if there is none."""
    return read_state(output.plan_path, _parse)


def write_plan(output: Output, plan: Plan) -> Path:
    """Put the plan into an output, in the place of an earlier plan and of nothing else."""
    path = output.plan_path
    if output.has_plan and not isinstance(read_plan(output), Plan):
        raise UsageError(
            f"{path} exists and is no plan of this version, or it is damaged. Move it, or give another --output."
        )
    try:
        write_state(path, plan.model_dump(mode="json"))
    except OSError as error:
        raise OutputError(f"cannot write to {output.folder}: {error.strerror}. Choose another --output.") from error
    return path


def _parse(fields: Fields) -> Plan:
    if not fields.sealed or fields.text("program") != PROGRAM:
        raise UnfitError("it is no plan of this program")
    try:
        plan = Plan.model_validate(fields.values())
        plan.model_dump_json()  # names and reasons in it come into the summary: they must be text
    except ValidationError as error:
        first = error.errors()[0]
        raise UnfitError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except PydanticSerializationError as error:
        raise UnfitError(str(error)) from error
    return plan
