"""The options of `embed`: name, type, default, help and check of each, in the signature of `make_config`.

The command line, the fields of `RunConfig` and the signature of the Python function `embed` are derived from it.
Annotations are evaluated here (no `from __future__ import annotations`), as they are read at run time.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

# the lists of valid values belong to the parts that implement them
from ultimate_embedder.config import (
    BACKENDS,
    COMPANIONS,
    DEFAULT_MODEL,
    ENGINES,
    HUB,
    OLD_MODE_NAMES,
    OVERLONG,
    PARALLELISMS,
    PRECISIONS,
    BatchTokens,
    CacheDirOption,
    Companions,
    Input,
    ModelChoice,
    OfflineOption,
    Option,
    Overlong,
    Precision,
    RunConfig,
    TrustOption,
    at_least,
    devices_from_environment,
    existing_folder,
    expand_pattern,
    field_choice,
    hub_access,
    one_of,
    parse_field,
    parse_hnsw,
    parse_model_choice,
    parse_names,
    parse_share,
    parse_size,
    parse_sparse,
    read_inputs,
    read_options,
    split_words,
    weighted_choice,
)
from ultimate_embedder.devices import DEVICE_WORDS
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import DEFAULT_EXPORTS, EXPORT_KINDS
from ultimate_embedder.output import REPORT_NAME, Output, collection_name_problem, summary_problem
from ultimate_embedder.planning import MODES
from ultimate_embedder.stop import parse_deadline, parse_duration
from ultimate_embedder.types import HnswGraph
from ultimate_embedder.vectors import FUSIONS

MODE_WORDS = ("auto", *MODES)
BASICS = "basics"
FIELDS = "fields of a record"
MODELS = "models"
ENSEMBLE = "several models"
DEVICES = "devices and GPU memory"
RESUME = "stop and resume"
CLUSTER = "a cluster"
OUTPUT = "output"

LEAST_TOKENS = 8
Folder = str | Path
Words = str | Iterable[str]
"""A comma-separated string, or a list of strings."""


def _output_folder(value: Folder, option: str) -> Path:
    output = Path(value)
    if output.exists() and not output.is_dir():
        raise UsageError(f"{option} {output} is a file. Give a folder, or a path that does not exist yet.")
    return output


def _check_output(output: Path, inputs: tuple[Input, ...]) -> None:
    """Reject an output folder in which chunk files could be overwritten."""
    paths = [found for each in inputs if isinstance(each, Path) for found in expand_pattern(each)]
    if any(output.resolve() == path.resolve() for path in paths):
        raise UsageError(f"--output {output} is the chunk folder itself. Give another folder.")
    if not output.is_dir() or Output(output).lock_path.exists():
        return
    if any(output.glob("*_chunks.json")) or any(_is_collection_of(path, output) for path in paths):
        raise UsageError(
            f"--output {output} contains chunk files. Give another folder, so that they are not overwritten."
        )


def _is_collection_of(chunks: Path, folder: Path) -> bool:
    """Whether a folder below a chunk folder has chunk files in it: as an output it would be skipped from then on."""
    if not folder.resolve().is_relative_to(chunks.resolve()):
        return False
    from ultimate_embedder.chunks import is_chunk_file  # imports numpy

    return any(is_chunk_file(path) for path in folder.iterdir())


def _collection_name(value: str, option: str) -> str:
    if problem := collection_name_problem(value) if isinstance(value, str) else "is not text":
        raise UsageError(f"{option} {value!r} {problem}. Give another name.")
    return value


def _summary_file(value: Folder, option: str) -> Path:
    if Path(value).is_dir():
        raise UsageError(f"{option} {value} is a folder. Give the name of a file.")
    return Path(value)


def _models(value: Words | Mapping[str, float], option: str) -> tuple[ModelChoice, ...]:
    if isinstance(value, Mapping):
        chosen = tuple(weighted_choice(name, weight) for name, weight in value.items())
    else:
        chosen = tuple(parse_model_choice(word) for word in split_words(value))
    if not chosen:
        raise UsageError(f"{option} is empty. 'ultimate-embedder models list' shows the names.")
    return chosen


def _mode(word: str, option: str) -> str:
    return str(one_of(OLD_MODE_NAMES.get(word, word), MODE_WORDS, option))


def _cosine(value: float | str, option: str) -> float:
    try:
        cosine = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{option} {value!r}: not a number. Write 0.999, for example.") from None
    if not 0 < cosine < 1:
        raise UsageError(f"{option} {value}: must be above 0 and below 1. Write 0.999, for example.")
    return cosine


def _devices(value: Words, option: str) -> str:
    return ",".join(split_words(value))


def _exports(value: Words, option: str) -> tuple[str, ...]:
    if value == "none":
        return ()
    return tuple(dict.fromkeys(one_of(kind, EXPORT_KINDS, option) for kind in parse_names(value, option)))


def _batch_tokens(value: str | int | Iterable[str], option: str) -> tuple[BatchTokens, ...]:
    """Read `N`, or `MODEL=N,...`."""
    hints = []
    for word in [str(value)] if isinstance(value, int) else split_words(value):
        model, equals, number = word.rpartition("=")
        if not number.strip().isdecimal() or int(number) < LEAST_TOKENS or (equals and not model):
            raise UsageError(f"{option} {word}: write a number of tokens, at least {LEAST_TOKENS}, or MODEL=8192.")
        hints.append(BatchTokens(model or None, int(number)))
    return tuple(hints)


def _ray_address(word: str, option: str) -> str:
    host, colon, port = word.rpartition(":")
    if host.startswith("ray:"):
        raise UsageError(
            f"{option} {word}: Ray Client is not supported. Run the command on a node of the cluster, or send "
            "it there with 'ray job submit'."
        )
    if word not in ("auto", "local") and not (colon and host and port.isdecimal()):
        raise UsageError(f"{option} {word}: write auto, local, or HOST:PORT, such as 10.0.0.1:6379.")
    return word


def make_config(
    chunks: Annotated[
        Folder | Iterable[Any],
        Option(
            "chunk files, folders of them (each subfolder is a collection), patterns such as 'c/*.csv', or - for "
            "standard input",
            BASICS,
            "CHUNKS",
            positional=True,
            many_paths=True,
            read=read_inputs,
        ),
    ],
    output: Annotated[
        Folder, Option("folder for vectors, exports and summary", BASICS, "DIR", short="-o", read=_output_folder)
    ],
    *,
    name: Annotated[
        str | None,
        Option("make one collection of everything, with this name", BASICS, "NAME", read=_collection_name),
    ] = None,
    collections: Annotated[
        Words | None, Option("embed only these collections", BASICS, "NAME,...", default="all", read=parse_names)
    ] = None,
    dry_run: Annotated[
        bool, Option("check options, models and chunks; compute nothing, write nothing", BASICS)
    ] = False,
    text_field: Annotated[
        str | None,
        Option("key of the text, or a path: meta.body", FIELDS, "FIELD", default="recognised", read=parse_field),
    ] = None,
    id_field: Annotated[
        str | None, Option("key or path of the id", FIELDS, "FIELD", default="recognised", read=parse_field)
    ] = None,
    metadata_field: Annotated[
        str | None, Option("key or path of the metadata", FIELDS, "FIELD", default="recognised", read=parse_field)
    ] = None,
    title_field: Annotated[
        str | None, Option("put this field in front of the text", FIELDS, "FIELD", default="none", read=parse_field)
    ] = None,
    models: Annotated[
        Words | Mapping[str, float],
        Option(
            "names from 'models list', hub ids or model folders; the first is the primary",
            MODELS,
            "KEY_OR_PATH[=WEIGHT],...",
            read=_models,
        ),
    ] = DEFAULT_MODEL,
    sparse: Annotated[
        Words,
        Option(
            "sparse vectors beside the dense ones, for hybrid search: bm25, bm25=LANGUAGE, splade=KEY_OR_PATH",
            MODELS,
            "METHOD[=WHAT],...",
            read=parse_sparse,
        ),
    ] = (),
    max_tokens: Annotated[
        int | None,
        Option(
            "truncate texts to N tokens",
            MODELS,
            "N",
            default="the model's limit",
            read=partial(at_least, least=LEAST_TOKENS),
        ),
    ] = None,
    token_cap: Annotated[
        int | None,
        Option(
            "truncate to N tokens only where the model's limit is higher",
            MODELS,
            "N",
            read=partial(at_least, least=LEAST_TOKENS),
        ),
    ] = None,
    overlong: Annotated[
        Overlong,
        Option(
            "texts beyond the token limit; pool: one vector of overlapping segments, split: a point for each segment",
            MODELS,
            "HOW",
            choices=OVERLONG,
        ),
    ] = "truncate",
    overlap: Annotated[
        int | None,
        Option(
            "tokens that segments of --overlong pool or split share with the next",
            MODELS,
            "N",
            default="an eighth of a segment",
            read=partial(at_least, least=0),
        ),
    ] = None,
    dim: Annotated[
        int | None,
        Option(
            "truncate vectors to N dimensions (models trained for it: Matryoshka)",
            MODELS,
            "N",
            read=partial(at_least, least=1),
        ),
    ] = None,
    precision: Annotated[
        Precision,
        Option(
            "number format; on a CPU, int8 is for those with VNNI, bf16 for those with AVX-512 BF16 or AMX",
            MODELS,
            "P",
            choices=PRECISIONS,
        ),
    ] = "auto",
    min_cosine: Annotated[
        float | str | None,
        Option(
            "with --precision int8 or bf16 on a CPU: take the fastest way whose vectors have at least this cosine with "
            "fp32, as the mean over 64 of the texts; stop if there is none",
            MODELS,
            "C",
            read=_cosine,
        ),
    ] = None,
    backend: Annotated[
        str | None,
        Option(
            "runtime on the CPU",
            MODELS,
            "NAME",
            choices=BACKENDS,
            default="torch; with --precision int8 torch on CPUs with AVX-512 VNNI for models like BERT, else openvino",
        ),
    ] = None,
    mode: Annotated[
        str, Option("how models share the devices", ENSEMBLE, "MODE", choices=MODE_WORDS, read=_mode)
    ] = "auto",
    fusion: Annotated[str, Option("how their vectors are combined", ENSEMBLE, "METHOD", choices=FUSIONS)] = "named",
    no_ensemble: Annotated[
        Words, Option("collections for the first model only", ENSEMBLE, "NAME,...", read=parse_names)
    ] = (),
    keep_primary: Annotated[
        bool, Option("keep the first model on the GPUs between its passes, if there is room", ENSEMBLE)
    ] = False,
    warm_cache: Annotated[bool, Option("keep every model on the GPUs, if there is room", ENSEMBLE)] = False,
    allow_missing_companions: Annotated[
        bool, Option("continue without missing models, except the first", ENSEMBLE)
    ] = False,
    devices: Annotated[
        Words | None,
        Option(f"devices to compute on: {' | '.join(DEVICE_WORDS)}", DEVICES, "DEVICES", default="auto", read=_devices),
    ] = None,
    device_order: Annotated[
        Words, Option("use only these devices, in this order", DEVICES, "N,...", read=parse_names)
    ] = (),
    force_cpu: Annotated[Words, Option("collections that use no GPU", DEVICES, "NAME,...", read=parse_names)] = (),
    companions: Annotated[
        Companions,
        Option(
            "companions of --mode simultaneous that no other GPU has room for: on the CPU, or on the first GPU too",
            ENSEMBLE,
            "WHERE",
            choices=COMPANIONS,
        ),
    ] = "spill",
    release_companions: Annotated[
        bool, Option("take companions' weights off the GPU every 4,096 texts", ENSEMBLE)
    ] = False,
    batch_tokens: Annotated[
        str | int | Iterable[str],
        Option(
            "most padded tokens of a batch; memory may lower it",
            DEVICES,
            "N | MODEL=N,...",
            default="1,024 on a CPU, 16,384 on a GPU",
            read=_batch_tokens,
        ),
    ] = (),
    batch_rows: Annotated[
        int | None, Option("most texts of a batch; memory may lower it", DEVICES, "N", read=partial(at_least, least=1))
    ] = None,
    parallelism: Annotated[
        str, Option("one model on several GPUs", DEVICES, "METHOD", choices=PARALLELISMS)
    ] = "replicas",
    gpu0_ceiling: Annotated[
        str | int | None,
        Option(
            "maximum memory to use on the first GPU",
            DEVICES,
            "SIZE",
            default="12GB on GPUs of up to 16 GB, else no other than --safety-margin",
            read=parse_size,
            field="gpu0_ceiling_bytes",
        ),
    ] = None,
    safety_margin: Annotated[
        str | float, Option("share of each GPU's memory to leave free", DEVICES, "SHARE", read=parse_share)
    ] = "8%",
    gradient_checkpointing: Annotated[
        bool, Option("accepted for compatibility; saves memory only in training", DEVICES)
    ] = False,
    cache_dir: CacheDirOption = None,
    offline: OfflineOption = False,
    refresh_cache: Annotated[bool, Option("ask the hub for newer commits of the models", HUB)] = False,
    trust_remote_code: TrustOption = (),
    deadline: Annotated[
        str | float | None,
        Option(
            "stop before this time and keep what is done: 11h30m, or 18:30",
            RESUME,
            "WHEN",
            read=parse_deadline,
            field="deadline_s",
        ),
    ] = None,
    stall_timeout: Annotated[
        str | float | None,
        Option(
            "stop, and keep what is done, when a device has not finished a batch for this long: 30m",
            RESUME,
            "DURATION",
            default="never",
            read=parse_duration,
            field="stall_timeout_s",
        ),
    ] = None,
    fresh: Annotated[bool, Option("recompute everything", RESUME)] = False,
    resume_from: Annotated[
        Folder | None, Option("reuse the vectors of an earlier output (read-only)", RESUME, "DIR", read=existing_folder)
    ] = None,
    skip_existing: Annotated[bool, Option("skip collections that already have these exports", RESUME)] = False,
    engine: Annotated[
        str, Option("where to compute: on this machine, or on a Ray cluster", CLUSTER, "ENGINE", choices=ENGINES)
    ] = "local",
    ray_address: Annotated[
        str | None,
        Option(
            "the cluster: auto, HOST:PORT, or local for one that is started on this machine",
            CLUSTER,
            "ADDRESS",
            default="auto",
            read=_ray_address,
        ),
    ] = None,
    ray_nodes: Annotated[
        int | None,
        Option("nodes of a local cluster", CLUSTER, "N", default="1", read=partial(at_least, least=1)),
    ] = None,
    ray_wait: Annotated[
        str | float,
        Option(
            "stop, and keep what is done, when the cluster has had no node for this long",
            CLUSTER,
            "DURATION",
            read=parse_duration,
            field="ray_wait_s",
        ),
    ] = "10m",
    unit_timeout: Annotated[
        str | float,
        Option(
            "give up a node that has not answered, or finished a batch, for this long",
            CLUSTER,
            "DURATION",
            read=parse_duration,
            field="unit_timeout_s",
        ),
    ] = "5m",
    ship_models: Annotated[
        bool, Option("send models to nodes that do not have them and cannot download them", CLUSTER)
    ] = False,
    shared_output: Annotated[
        bool, Option("the output is on a file system that all nodes share: they write vectors there", CLUSTER)
    ] = False,
    exports: Annotated[
        Words,
        Option(
            f"files to write, of {', '.join(EXPORT_KINDS)}, or none", OUTPUT, "KIND,...", flag="--export", read=_exports
        ),
    ] = DEFAULT_EXPORTS,
    hnsw: Annotated[
        str | bool | Mapping[str, int] | None,
        Option(
            "build a search graph in the qdrant export; takes minutes for each 100,000 chunks",
            OUTPUT,
            "m=N,ef_construct=N",
            default=f"exact search; --hnsw alone: {HnswGraph()}",
            alone=str(HnswGraph()),
            read=parse_hnsw,
        ),
    ] = None,
    summary: Annotated[
        Folder | None, Option("write a copy of the summary to this file", OUTPUT, "PATH", read=_summary_file)
    ] = None,
    no_report: Annotated[bool, Option(f"do not write {REPORT_NAME}, the page about the run", OUTPUT)] = False,
    otel: Annotated[
        bool, Option("send spans and metrics by OpenTelemetry, to where the OTEL_* variables say", OUTPUT)
    ] = False,
    quiet: Annotated[bool, Option("show no progress", OUTPUT, short="-q")] = False,
) -> RunConfig:
    """Turn the user's options into a valid `RunConfig`, or raise a `UsageError` that lists the valid values."""
    values = read_options(make_config, locals())
    _check_output(values["output"], values["chunks"])
    if values["summary"] and (problem := summary_problem(values["output"], values["summary"])):
        raise UsageError(f"--summary {values['summary']} {problem}. Choose another file.")
    if mode == "single" and len(values["models"]) > 1:
        raise UsageError(f"--mode single takes one model, but --models names {len(values['models'])}. Drop --mode.")
    if fresh and resume_from is not None:
        raise UsageError("--fresh and --resume-from contradict each other. Drop one.")
    if values["hnsw"] and "qdrant" not in values["exports"]:
        raise UsageError("--hnsw builds a graph in the qdrant export, which --export leaves out. Add qdrant to it.")
    if fresh and skip_existing:
        raise UsageError("--fresh and --skip-existing contradict each other. Drop one.")
    if overlap is not None and overlong == "truncate":
        raise UsageError("--overlap is for --overlong pool or split. Drop it, or choose one of them.")
    _check_cluster(values)
    _check_min_cosine(values)
    values["collections"] = values["collections"] or ()
    chosen = {name: values.pop(f"{name}_field") for name in ("text", "id", "metadata", "title")}
    values["fields"] = field_choice(**chosen)
    values["devices"] = values["devices"] or devices_from_environment() or "auto"
    values["backend"] = _backend(backend, precision, values["engine"])
    values["hub"] = hub_access(
        cache_dir=values.pop("cache_dir"),
        offline=values.pop("offline"),
        refresh=values.pop("refresh_cache"),
        trusted=values.pop("trust_remote_code"),
    )
    return RunConfig(**values)


def _check_cluster(values: dict[str, Any]) -> None:
    """Options of a cluster mean nothing without one."""
    if values["engine"] == "local":
        given = [name for name in ("ray_address", "ray_nodes", "ship_models", "shared_output") if values[name]]
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} is for --engine ray. Add that, or drop it.")
    values["ray_address"] = values["ray_address"] or "auto"
    if values["ray_nodes"] and values["ray_address"] != "local":
        raise UsageError("--ray-nodes is for a cluster that is started here. Add --ray-address local, or drop it.")


def _backend(given: str | None, precision: Precision, engine: str) -> str:
    if precision == "int8":
        return _int8_backend(given, engine)
    backend = given or "torch"
    if precision in ("fp16", "bf16") and backend != "torch":
        raise UsageError(
            f"--backend {backend} computes in fp32, or with --precision int8. Drop --precision {precision}."
        )
    return backend


def _int8_backend(given: str | None, engine: str) -> str:
    """Our own kernels where they can be had, else another runtime; the nodes of a cluster may not have them."""
    from ultimate_embedder.models import NO_INT8_KERNELS, has_native_int8, int8_backend  # imports numpy

    if given == "torch" and engine == "local" and not has_native_int8():
        raise UsageError(NO_INT8_KERNELS)
    return given or ("torch" if engine == "local" and has_native_int8() else int8_backend())


def _check_min_cosine(values: dict[str, Any]) -> None:
    """What `--min-cosine` can choose from."""
    if values["min_cosine"] is None:
        return
    if values["precision"] not in ("int8", "bf16"):
        raise UsageError("--min-cosine is for --precision int8 or bf16 on a CPU. Add one of them, or drop it.")
    if values["engine"] != "local":
        raise UsageError(
            "--min-cosine measures on the machine that computes, and with --engine ray that is many. Drop it: the run "
            "tells what the precision costs."
        )
