"""`plan.json`: whatever is in it, the next run is not disturbed by it; its schema is in the docs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_summary import described_fields
from tests.support.damage import Damage, damages, edits, resealed, restore, unsealed
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, UsageError, embed, plan
from ultimate_embedder.config import HubAccess
from ultimate_embedder.output import Output
from ultimate_embedder.planned import Plan, read_plan, write_plan
from ultimate_embedder.report import plan_lines
from ultimate_embedder.report.generated import plan_schema
from ultimate_embedder.report.plan_check import PlanCheck
from ultimate_embedder.state import Damaged
from ultimate_embedder.verify import verify_output

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "plan.schema.json"
EVERY_CASE = os.environ.get("FUZZ_PROFILE") == "long"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """A run that was planned; its output has the plan."""
    root = tmp_path_factory.mktemp("planned")
    (root / "texts.json").write_text(json.dumps([f"text {number} " * (number % 5 + 1) for number in range(24)]))
    options: dict[str, Any] = {
        "models": [str(tiny_model("bert", hidden=32, layers=1))],
        "devices": "cpu",
        "exports": "npy",
    }
    plan(root / "texts.json", root / "out", **options)
    return embed(root / "texts.json", root / "out", quiet=True, **options)


@pytest.fixture
def output(run: RunSummary) -> Output:
    return Output(Path(run.output))


@pytest.mark.parametrize("damage", [pytest.param(each, id=words) for words, each in damages().items()])
def test_a_damaged_plan_is_named_and_never_overwritten(output: Output, tmp_path: Path, damage: Damage) -> None:
    copy = Output(restore(output.folder, tmp_path / "out"))
    made = read_plan(copy)
    assert isinstance(made, Plan)
    assert verify_output(copy.folder, 0, HubAccess(offline=True)).damaged == []
    damage(copy.plan_path)
    found = read_plan(copy)
    if found is None or found == made:  # a link to nothing, or only the line break is missing
        return
    assert isinstance(found, Damaged)
    (problem,) = verify_output(copy.folder, 0, HubAccess(offline=True)).damaged
    assert str(copy.plan_path) in problem
    with pytest.raises(UsageError, match="Move it, or give another --output"):
        write_plan(copy, made)


def test_values_that_cannot_be_right_do_not_disturb_a_run(run: RunSummary, output: Output, tmp_path: Path) -> None:
    """Every value in turn is missing, or of another type, with its checksum: a sample; with FUZZ_PROFILE=long all."""
    copy, read = Output(tmp_path), 0
    cases = list(edits(json.loads(output.plan_path.read_bytes())))
    for words, values in cases if EVERY_CASE else cases[::5]:
        copy.plan_path.write_text(json.dumps(resealed(values)))
        found = read_plan(copy)
        if isinstance(found, Plan):
            read += 1
            try:
                compared = PlanCheck(Plan.model_validate(found.compared())).compare(run.model_copy(deep=True))
                compared.model_dump_json()
                list(plan_lines(found))
            except Exception as error:
                raise AssertionError(words) from error
    assert read > 50


def test_a_plan_without_checksum_is_none(output: Output, tmp_path: Path) -> None:
    copy = Output(tmp_path)
    copy.plan_path.write_text(json.dumps(unsealed(json.loads(output.plan_path.read_bytes()))))
    assert isinstance(read_plan(copy), Damaged)


def test_the_schema_in_the_docs_describes_every_field() -> None:
    documented, now = json.loads(SCHEMA.read_text("utf-8")), json.loads(plan_schema())
    assert described_fields(documented) == described_fields(now), "run 'make generated'"
