"""What a run embeds: the collections in its inputs, and what is wrong with their names, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ultimate_embedder.chunks import Discovery, find_collections
from ultimate_embedder.config import RunConfig, SparseChoice, suggest
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import CollectionFinished, Emit, Warned
from ultimate_embedder.export import target_collection_name
from ultimate_embedder.files import is_temporary
from ultimate_embedder.models import model_name
from ultimate_embedder.names import same_name
from ultimate_embedder.output import Output, summary_problem
from ultimate_embedder.types import Collection


def discover(config: RunConfig, emit: Emit) -> Discovery:
    """Find the collections, and say what is not there or was left out."""
    for path in config.paths:
        if Output(path).lock_path.exists():
            raise UsageError(f"{path} is an output of ultimate-embedder, not chunks. Give what it was made from.")
    found = find_collections(config.paths, config.collections, config.output, config.name)
    for message in (*found.warnings, *_unknown_names(config, found.collections)):
        emit(Warned(message=message))
    for name in found.missing:
        emit(CollectionFinished(collection=name, status="skipped_missing"))
    return found


def check_collections(collections: Sequence[Collection], config: RunConfig) -> Iterator[str]:
    """What is wrong with names and folders, before anything is computed.

    Yields warnings; raises `UsageError` for collections that would overwrite each other, or their own chunk files.
    """
    bad = [f"{each.name}: {each.problem}" for each in collections if each.problem is not None]
    problems = list(_name_problems([each for each in collections if each.problem is None], config))
    if problems:
        raise UsageError(" ".join([*problems, *bad]))
    if bad:
        others = " The others are embedded." if len(bad) < len(collections) else ""
        yield f"cannot be embedded: {' '.join(bad)}{others}"
    for path in config.paths:
        if path.resolve().parent.is_relative_to(config.output.resolve()) and not is_temporary(path.parent.name):
            yield f"the input {path} is inside the --output {config.output}; the two are better kept apart"


def target_name(collection: str, models: Sequence[str], config: RunConfig, sparse: Sequence[str] = ()) -> str:
    """The Qdrant collection of a collection that these models embed, with these sparse vectors beside theirs."""
    makers = "__".join([*models, *([config.fusion] if len(models) > 1 else []), *sparse])
    return target_collection_name(collection, makers, config.dim)


def sparse_name(choice: SparseChoice) -> str:
    """The name of a sparse vector."""
    return model_name(choice.model) if choice.model is not None else choice.method


def _name_problems(collections: Sequence[Collection], config: RunConfig) -> Iterator[str]:
    """Collections that would be one folder, one collection in Qdrant, or a folder of chunk files."""
    folders: dict[str, Collection] = {}
    targets: dict[str, Collection] = {}
    models = [model_name(choice.name) for choice in config.models]
    for collection in collections:
        name = collection.name
        if config.summary and (problem := summary_problem(config.output, config.summary, [name])):
            yield f"--summary {config.summary} {problem}. Choose another file."
        own = (config.output / name).resolve()
        if any(file.resolve().is_relative_to(own) for file in (collection.folder, *collection.files[:1])):
            yield f"the vectors of {name} would be written to {own}, among its chunk files. Give another --output."
        sparse = [sparse_name(choice) for choice in config.sparse]
        target = target_name(name, models[:1] if name in config.no_ensemble else models, config, sparse)
        if (other := folders.setdefault(same_name(name), collection)) is not collection:
            yield _both(other, collection, "one folder on a disk that ignores case")
        elif (other := targets.setdefault(target, collection)) is not collection:
            yield _both(other, collection, f"the Qdrant collection {target}")


def _both(one: Collection, other: Collection, same: str) -> str:
    if one.name == other.name:
        return (
            f"{one.place} and {other.place} would both be the collection {one.name}. Rename one of them, or give "
            "--name to make one collection of everything."
        )
    return (
        f"the collections {one.name} and {other.name} would both be {same}. Rename one of them, or embed one at a "
        "time: each with --collections, and into an --output of its own."
    )


def _unknown_names(config: RunConfig, collections: tuple[Collection, ...]) -> Iterator[str]:
    names = [collection.name for collection in collections]
    for option, given in (("--no-ensemble", config.no_ensemble), ("--force-cpu", config.force_cpu)):
        for name in given:
            if name not in names:
                yield f"{option} {name}: there is no such collection.{suggest(name, names)}"
    models = [model_name(choice.name) for choice in config.models]
    models += [sparse_name(choice) for choice in config.sparse]
    for name in config.hub.trusted:
        if model_name(name) not in models:
            option = "--models or --sparse" if config.sparse else "--models"
            yield f"--trust-remote-code {name}: {option} does not name it.{suggest(name, models)}"
