"""What is evaluated: queries with their relevant documents, and which ids match nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import PointsFile
from ultimate_embedder.find.evaluate.documents import Documents, read_documents, suggest_field
from ultimate_embedder.find.evaluate.judgements import Judgements
from ultimate_embedder.find.evaluate.measures import Relevant
from ultimate_embedder.find.evaluate.queries import Queries
from ultimate_embedder.find.evaluate.records import MOST_EXAMPLES, shorten_example

FEW_QUERIES = 30
MANY_MISSING = 0.5


@dataclass(frozen=True)
class Unmatched:
    """Ids that match nothing: how many, and the first of them."""

    count: int = 0
    examples: tuple[str, ...] = ()

    @classmethod
    def of(cls, ids: Iterable[str]) -> Unmatched:
        """Count the ids."""
        found = list(ids)
        return cls(len(found), tuple(shorten_example(each) for each in found[:MOST_EXAMPLES]))

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        return f"{self.count:,} ({', '.join(self.examples)}{more})"


@dataclass(frozen=True)
class Matching:
    """Which queries, judgements and documents belong together, and which match nothing."""

    queries: int
    """Those that are evaluated."""
    judgements: int
    """Judged pairs of these queries."""
    relevant: int
    """Those of them with a grade above 0."""
    queries_without_judgements: Unmatched
    judged_queries_without_text: Unmatched
    queries_without_relevant: Unmatched
    """Judged, but no document with a grade above 0."""
    documents_not_found: Unmatched
    """Judged documents that the collection does not have; relevant ones count as not found."""
    relevant_not_found: int
    """Relevant pairs whose document the collection does not have."""


@dataclass(frozen=True)
class Task:
    """Queries with a text and at least one relevant document, in the order of the file."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    relevant: tuple[Relevant, ...]
    documents: Documents
    matching: Matching
    notes: tuple[str, ...]


def make_task(queries: Queries, judgements: Judgements, points: PointsFile, doc_field: str | None) -> Task:
    """Match queries, judgements and documents; raises `UsageError` where nothing matches."""
    grades = judgements.grades
    known = [query for query in queries.texts if query in grades]
    if not known:
        raise UsageError(
            f"no query has a judgement: ids of queries are {_few(queries.texts)}, ids in the judgements "
            f"{_few(grades)}. Give files that belong together."
        )
    used = [query for query in known if any(grade > 0 for grade in grades[query].values())]
    if not used:
        raise UsageError(f"no query has a relevant document: all grades of {_few(known)} are 0. Give other judgements.")
    wanted = {document for query in known for document in grades[query]}
    documents = read_documents(points, wanted, doc_field)
    if not documents.number_of:
        raise UsageError(_nothing_matches(points, documents, wanted, doc_field))
    relevant = tuple(_relevant(grades[query], documents) for query in used)
    pairs = [grade for query in used for grade in grades[query].values()]
    matching = Matching(
        queries=len(used),
        judgements=len(pairs),
        relevant=sum(grade > 0 for grade in pairs),
        queries_without_judgements=Unmatched.of(query for query in queries.texts if query not in grades),
        judged_queries_without_text=Unmatched.of(query for query in grades if query not in queries.texts),
        queries_without_relevant=Unmatched.of(query for query in known if query not in set(used)),
        documents_not_found=Unmatched.of(sorted(wanted - documents.number_of.keys())),
        relevant_not_found=sum(len(each.missing) for each in relevant),
    )
    notes = (*queries.problems, *judgements.problems, *documents.notes, *_about(matching))
    texts = tuple(queries.texts[query] for query in used)
    return Task(tuple(used), texts, relevant, documents, matching, notes)


def _relevant(grades: dict[str, int], documents: Documents) -> Relevant:
    rows = {documents.number_of[each]: grade for each, grade in grades.items() if each in documents.number_of}
    missing = (grade for each, grade in grades.items() if each not in documents.number_of and grade > 0)
    return Relevant(rows, tuple(missing))


def _about(matching: Matching) -> Iterable[str]:
    """What the user should know about ids that match nothing."""
    if matching.queries_without_judgements.count:
        yield f"queries without judgements, which are left out: {matching.queries_without_judgements}"
    if matching.judged_queries_without_text.count:
        yield f"judged queries that the queries file does not have: {matching.judged_queries_without_text}"
    if matching.queries_without_relevant.count:
        yield f"queries without a relevant document, which are left out: {matching.queries_without_relevant}"
    if matching.documents_not_found.count:
        share = matching.relevant_not_found / max(1, matching.relevant)
        lost = f"{matching.relevant_not_found:,} of {matching.relevant:,} relevant ones count as not found"
        many = ": the ids may be of another version of the collection" if share > MANY_MISSING else ""
        yield f"judged documents that are not in the collection: {matching.documents_not_found}; {lost}{many}"
    if matching.queries < FEW_QUERIES:
        yield f"{matching.queries} queries are few: only large differences can be told from chance"


def _nothing_matches(points: PointsFile, documents: Documents, wanted: Collection[str], doc_field: str | None) -> str:
    what = f"values of {doc_field}" if doc_field else "ids of chunks"
    found = ", ".join(documents.examples)
    told = f"no judged document is in {points.collection}: {what} are {found}, ids in the judgements {_few(wanted)}."
    field = suggest_field(points, wanted)
    if field and field != doc_field:
        return f"{told} Try --doc-field {field}, which has such values."
    return f"{told} Give the judgements of this collection, or --doc-field with the field that has these ids."


def _few(ids: Collection[str]) -> str:
    few = [shorten_example(each) for each, _ in zip(ids, range(MOST_EXAMPLES), strict=False)]
    return ", ".join(few) + (", ..." if len(ids) > len(few) else "")
