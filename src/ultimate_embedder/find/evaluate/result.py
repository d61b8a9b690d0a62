"""What an evaluation found: the schema of `evaluate --json` and of `evaluation.json`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ultimate_embedder.errors import OutputError
from ultimate_embedder.find.evaluate.measures import MEASURES
from ultimate_embedder.find.evaluate.statistics import SIGNIFICANT, Difference
from ultimate_embedder.lock import hold_output
from ultimate_embedder.markup import html_table
from ultimate_embedder.output import Output
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state

VERSION = 1
MOST_ROWS = 2_000
ROUNDING = 1e-6

# a file from elsewhere may say anything: what is drawn is within these bounds
Share = Annotated[float, Field(ge=-ROUNDING, le=1 + ROUNDING)]
Change = Annotated[float, Field(ge=-1 - ROUNDING, le=1 + ROUNDING)]


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, populate_by_name=True, extra="ignore", allow_inf_nan=False, protected_namespaces=()
    )


class Compared(_Part):
    """The difference to another way, query by query, in nDCG@10."""

    to: str = Field(description="the way that it is compared with")
    difference: Change = Field(description="mean difference of nDCG@10")
    interval: tuple[Change, Change] = Field(description="95 % bootstrap interval of the difference")
    p: Share = Field(description="two-sided paired randomisation test")
    p_corrected: Share | None = Field(None, description="corrected for the number of comparisons (Holm)")
    better: int = Field(0, description="queries with a higher nDCG@10")
    worse: int = 0
    equal: int = 0

    @classmethod
    def of(cls, to: str, found: Difference) -> Compared:
        """A difference that was computed."""
        interval = (found.interval.low, found.interval.high)
        return cls(
            to=to,
            difference=found.mean,
            interval=interval,
            p=found.p,
            p_corrected=found.p_corrected,
            better=found.better,
            worse=found.worse,
            equal=found.equal,
        )

    @property
    def decisive_p(self) -> float:
        """The p value after the correction, if there is one."""
        return self.p if self.p_corrected is None else self.p_corrected

    @property
    def significant(self) -> bool:
        """Whether chance is no likely explanation: p is below 5 %."""
        return self.decisive_p < SIGNIFICANT

    @property
    def evidence(self) -> str:
        """The difference, its interval and its p value: ` (+0.012, 95 % +0.003 to +0.021, p = 0.010)`."""
        low, high = self.interval
        p = "p < 0.001" if self.decisive_p < 0.001 else f"p = {self.decisive_p:.3f}"
        return f" ({self.difference:+.3f}, 95 % {low:+.3f} to {high:+.3f}, {p})"


class EvaluationRow(_Part):
    """A way to search, and what it is worth."""

    name: str
    kind: str = Field(
        description="model, fusion, vector_fusion, sparse, hybrid, matryoshka, quantized, reranked, ceiling"
    )
    ndcg: Share = Field(alias="ndcg@10")
    recall: Share = Field(alias="recall@100")
    mrr: Share = Field(alias="mrr@10")
    map: Share
    interval: dict[str, tuple[Share, Share]] = Field(description="95 % bootstrap interval of each measure")
    compared: Compared | None = Field(
        None, description="with the best model, or with the model whose vectors these are"
    )
    models: list[str] = Field(default_factory=list, description="the models and sparse vectors that it needs")
    bytes_per_chunk: int | None = Field(None, description="of its dense vectors, in memory")
    note: str = ""

    @property
    def evidence(self) -> str:
        """The difference to what it is compared with, in words; empty if there is nothing to compare with."""
        return self.compared.evidence if self.compared is not None else ""

    def value(self, measure: str) -> float:
        """The value of a measure, by its name."""
        return float((self.ndcg, self.recall, self.mrr, self.map)[MEASURES.index(measure)])


class Statement(_Part):
    """One thing that the figures say."""

    about: str = Field(description="advice, model, ensemble, output, drop, reranker, weights or against")
    words: str
    command: str = Field("", description="what to type")


class Unmatched(_Part):
    """Ids that match nothing."""

    count: int = 0
    examples: list[str] = Field(default_factory=list)


class Matched(_Part):
    """Which queries, judgements and documents belong together."""

    queries: int
    judgements: int
    relevant: int
    queries_without_judgements: Unmatched = Unmatched()
    judged_queries_without_text: Unmatched = Unmatched()
    queries_without_relevant: Unmatched = Unmatched()
    documents_not_found: Unmatched = Unmatched()
    relevant_not_found: int = 0


class Tuned(_Part):
    """Weights that were chosen on one half of the queries, and what they are worth on the other."""

    method: str
    split: str
    tuned_on: int = Field(description="queries that the weights were chosen on")
    tested_on: int = Field(description="other queries, which all figures here are of")
    weights: dict[str, float]
    weights_before: dict[str, float]
    rows: list[EvaluationRow] = Field(max_length=MOST_ROWS, description="on the tested half only")


class QueryChange(_Part):
    """A query that another output answers differently."""

    id: str
    text: str
    here: Share
    there: Share


class Against(_Part):
    """The same queries on another output."""

    output: str
    collection: str
    chunks: int
    rows: list[EvaluationRow] = Field(
        max_length=MOST_ROWS, description="of the other output; compared with the default way of this one"
    )
    here: str = Field(description="the way that this output is searched by default")
    there: str
    change: Compared = Field(description="the other output minus this one, each by its default way")
    worse: list[QueryChange] = Field(default_factory=list)
    better: list[QueryChange] = Field(default_factory=list)


class Evaluation(_Part):
    """What an evaluation of one collection found."""

    collection: str
    output: str = ""
    evaluated_at: str = ""
    program_version: str = ""
    points: str = Field("", description="identity of the points that were evaluated")
    chunks: int = 0
    documents: int = 0
    doc_field: str | None = None
    queries: str = Field("", description="where the queries are from")
    qrels: str = Field("", description="where the judgements are from")
    made: bool = Field(False, description="whether the queries were made of titles and headings")
    seed: int = 0
    candidates: int = Field(0, description="candidates of each leg that are fused")
    matched: Matched
    rows: list[EvaluationRow] = Field(max_length=MOST_ROWS)
    best_model: str | None = None
    default: str = Field("", description="the way that search uses by default")
    verdict: list[Statement] = Field(default_factory=list)
    tuned: Tuned | None = None
    against: Against | None = None
    notes: list[str] = Field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return self.model_dump(mode="json", by_alias=True)

    def row(self, name: str) -> EvaluationRow:
        """The row of this name."""
        return next(each for each in self.rows if each.name == name)

    def __repr__(self) -> str:
        best = max(self.rows, key=lambda row: row.ndcg if row.kind != "ceiling" else -1.0)
        told = f"best {best.name} with nDCG@10 {best.ndcg:.3f}"
        return f"<Evaluation of {self.collection}: {self.matched.queries} queries, {len(self.rows)} rows, {told}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        rows = [[row.name, row.kind, *(f"{row.value(name):.3f}" for name in MEASURES)] for row in self.rows]
        title = f"{self.collection}: {self.matched.queries} queries, {self.chunks} chunks"
        return html_table(title, ["name", "kind", *MEASURES], rows, [each.words for each in self.verdict])


def read_evaluations(output: Output) -> list[Evaluation] | Damaged:
    """What was measured last, for each collection of an output."""
    found = read_state(output.evaluation_path, _parse)
    return [] if found is None else found


def keep_evaluation(output: Output, evaluation: Evaluation) -> str | None:
    """Write an evaluation into the output, in place of the one before; gives why that is not possible."""
    try:
        with hold_output(output.folder):
            known = read_evaluations(output)
            others = [] if isinstance(known, Damaged) else known
            kept = [each for each in others if each.collection != evaluation.collection]
            listed = [each.as_dict() for each in (*kept, evaluation)]
            write_state(output.evaluation_path, {"version": VERSION, "evaluations": listed})
    except OutputError as error:
        return str(error)
    except OSError as error:
        return f"{output.evaluation_path} cannot be written: {error.strerror}"
    return None


def _parse(fields: Fields) -> list[Evaluation]:
    fields.count("version", least=1, most=VERSION)
    try:
        return [Evaluation.model_validate(each.values()) for each in fields.inner_list("evaluations")]
    except ValidationError as error:
        first = error.errors()[0]
        raise UnfitError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
