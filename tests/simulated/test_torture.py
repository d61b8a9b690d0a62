"""Some of the torture cases; `make torture` runs hundreds."""

from __future__ import annotations

import pytest

from tests.simulated.torture import make_case, run_case
from tests.support.slow import slow


@pytest.mark.parametrize("seed", [*range(6), *map(slow, range(6, 12))])
def test_a_run_under_pressure_completes_with_the_right_vectors(seed: int) -> None:
    run_case(make_case(seed))
