"""Parts of the documentation that follow from the code: JSON Schemas of summary and plan, mitigations, the API page.

`python -m ultimate_embedder.report.generated DOCS` writes them into the folder DOCS.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ultimate_embedder.execution import LADDER, MITIGATIONS, Mitigation
from ultimate_embedder.planned import Plan
from ultimate_embedder.report.api_page import api_page
from ultimate_embedder.summary import RunSummary

END = "<!-- end -->"
SCHEMA_FILE, PLAN_SCHEMA_FILE, TABLE_FILE, API_FILE = "summary.schema.json", "plan.schema.json", "memory.md", "api.md"


def json_schema() -> str:
    """The JSON Schema of `summary.json`; a mitigation is one of the kinds in the ladder's list."""
    schema = RunSummary.model_json_schema()
    kind = schema["$defs"]["MitigationSummary"]["properties"]["type"]
    kind["enum"] = [mitigation.kind for mitigation in MITIGATIONS]
    return json.dumps(schema, indent=2) + "\n"


def plan_schema() -> str:
    """The JSON Schema of `plan.json`."""
    return json.dumps(Plan.model_json_schema(), indent=2) + "\n"


def with_tables(text: str) -> str:
    """A page with its tables of mitigations written anew, between their marks."""
    others = [mitigation for mitigation in MITIGATIONS if mitigation not in LADDER]
    for name, mitigations in (("ladder", LADDER), ("other mitigations", others)):
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = before + mark + _table(mitigations) + rest[rest.index(END) :]
    return text


def _table(mitigations: Sequence[Mitigation]) -> str:
    rows = [f"| `{mitigation.kind}` | {mitigation.sentence} |\n" for mitigation in mitigations]
    return "".join(["| kind | what happens |\n|---|---|\n", *rows])


def write_generated(docs: Path) -> None:
    """Write all of them into the folder of the documentation."""
    (docs / SCHEMA_FILE).write_text(json_schema(), "utf-8")
    (docs / PLAN_SCHEMA_FILE).write_text(plan_schema(), "utf-8")
    (docs / API_FILE).write_text(api_page(), "utf-8")
    page = docs / TABLE_FILE
    page.write_text(with_tables(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    write_generated(Path(sys.argv[1]))
