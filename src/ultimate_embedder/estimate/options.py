"""The options that only `plan` has; all others are those of `embed`.

Annotations are evaluated here (no `from __future__ import annotations`), as they are read at run time.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from ultimate_embedder.config import Option, read_options
from ultimate_embedder.errors import UsageError
from ultimate_embedder.stop import parse_duration

PLAN = "plan"
MOST_NODES = 100_000
SESSION = "12h"  # of Kaggle's GPUs


@dataclass(frozen=True)
class PlanOptions:
    """What a plan is for."""

    gpus: str | None
    calibrate: bool
    price_per_hour: float | None
    session_s: float
    nodes: int | None


def _price(value: str | float, option: str) -> float:
    try:
        price = float(value)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise UsageError(f"{option} {value}: write what an hour of the machine costs, such as 0.35.")
    return price


def _nodes(value: str | int, option: str) -> int:
    try:
        nodes = int(value)
    except ValueError:
        nodes = 0
    if not 1 <= nodes <= MOST_NODES:
        raise UsageError(f"{option} {value}: write how many machines like the described one there are, such as 4.")
    return nodes


def make_plan_options(
    *,
    gpus: Annotated[
        str | None,
        Option(
            "the cards of the machine that will do it: t4x2, l4, a100-40, h100, rtx4090, 2x15GiB, or cpu",
            PLAN,
            "CARDS",
            default="this machine's, as --devices has it",
        ),
    ] = None,
    calibrate: Annotated[
        bool, Option("run a few batches on this machine, to measure how fast it is; needs the weights", PLAN)
    ] = False,
    price_per_hour: Annotated[
        str | float | None, Option("what an hour of the machine costs", PLAN, "PRICE", read=_price)
    ] = None,
    session: Annotated[
        str | float,
        Option(
            "how long a session lasts: how many does it take?",
            PLAN,
            "DURATION",
            read=parse_duration,
            field="session_s",
        ),
    ] = SESSION,
    nodes: Annotated[
        str | int | None,
        Option(
            "so many such machines, as nodes of a cluster; --price-per-hour is of one of them",
            PLAN,
            "N",
            default="one machine, without a cluster",
            read=_nodes,
        ),
    ] = None,
) -> PlanOptions:
    """Turn the user's options into valid ones, or raise a `UsageError`."""
    values = read_options(make_plan_options, locals())
    if calibrate and gpus is not None and gpus.strip().lower() != "cpu":
        raise UsageError(
            f"--calibrate measures this machine, and --gpus {gpus} is another. Drop one of them: --devices chooses "
            "among the devices of this machine."
        )
    return PlanOptions(**values)
