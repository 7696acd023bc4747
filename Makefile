# `make help` explains itself. Every target sets up what it needs first; a second set-up costs a fraction of a second.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Some images say that no bytecode is to be kept; then each of the many processes of the tests compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
PYTEST := scripts/pytest.sh
# Four test processes by default: the machine of CI has two cores, and many tests wait. `make test JOBS=8` uses more.
JOBS ?= 4
CODE := rubato jobs service api benchmarks examples tests scripts

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv and the page from nothing but Python 3.11+
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Train on a local cluster: scale 1 -> 3 -> 2, kill a worker, compare the bits; leaves the service up
	@$(BIN)/rubato demo

.PHONY: up
up: setup ## Start the service, Ray and the agent on this machine
	@$(BIN)/rubato up

.PHONY: down
down: setup ## Stop what `make up` or `make demo` started
	@$(BIN)/rubato down

.PHONY: test
test: setup ## All tests but the long ones: a chaos sample, browser, GPU, integration, unit; says what it skips
	$(PYTEST) tests/e2e tests/chaos tests/gpu tests/integration tests/unit $(IN_ORDER) -rs -m "not long"

.PHONY: unit
unit: setup ## Unit tests
	$(PYTEST) tests/unit -q -n $(JOBS) --dist loadfile

.PHONY: properties
properties: setup ## The property tests with new random examples, ten times as many
	RUBATO_NEW_EXAMPLES=1 $(PYTEST) tests/unit -q -n $(JOBS) --dist loadfile

# Of each route.
EXAMPLES ?= 100

.PHONY: contract
contract: setup ## Many random requests to every route, as the API describes them; EXAMPLES=1000 makes more
	RUBATO_CONTRACT_EXAMPLES=$(EXAMPLES) RUBATO_NEW_EXAMPLES=1 $(PYTEST) tests/integration/service/test_contract.py -q --timeout 3600

# In the order of the folders, in which the short tests come last: the other order leaves one process alone at the end.
IN_ORDER := -q -n $(JOBS) --dist loadscope --no-loadscope-reorder --durations=40 --durations-min=5

.PHONY: integration
integration: setup ## Integration tests: processes, databases (a real PostgreSQL), one local Ray
	$(PYTEST) tests/integration $(IN_ORDER)

.PHONY: chaos-short
chaos-short: setup
	$(PYTEST) tests/chaos -q -rs -m short -n $(JOBS) --dist loadfile

# Ranks, steps and models of the fault table are chosen by SEED; what the faults cost replaces the RECORD of that seed,
# once all has passed: until then, and where a test failed, it lies beside it.
SEED ?= 1
MINUTES ?= 60

.PHONY: chaos
chaos: RECORD ?= tests/chaos/measured/seed-$(SEED).jsonl
# What a fault cost is measured: no more run beside it than the cores bear.
chaos: JOBS = 3
chaos: export RUBATO_CHAOS_SEED = $(SEED)
chaos: export RUBATO_CHAOS_RECORD = $(abspath $(RECORD)).part
chaos: setup ## All chaos tests (long); SEED=2 for other ranks, steps and models
	@mkdir -p $(dir $(RECORD)) && : > $(RECORD).part
	$(PYTEST) tests/chaos -q -rs -n $(JOBS) --dist worksteal --durations=80 --durations-min=20 -m "not alone" && passed=true || passed=false; \
		$(PYTEST) tests/chaos -q -rs -m alone && $$passed
	@mv $(RECORD).part $(RECORD)

.PHONY: soak
soak: RECORD ?= tests/chaos/measured/soak.jsonl
soak: export RUBATO_CHAOS_RECORD = $(abspath $(RECORD)).part
soak: setup ## Random churn for MINUTES=60 (at least one round, some five minutes), checked against the oracle; prints its seed (SEED=n does it again)
	@mkdir -p $(dir $(RECORD)) && : > $(RECORD).part
	$(BIN)/python tests/chaos/soak.py --minutes $(MINUTES) $(if $(filter file,$(origin SEED)),,--seed $(SEED))
	@mv $(RECORD).part $(RECORD)

.PHONY: fault-table
fault-table: setup ## Write what the faults cost into docs/faults.md, from the records of all seeds and of the last soak
	$(BIN)/python scripts/fault_table.py tests/chaos/measured/*.jsonl

.PHONY: e2e
e2e: setup ## The page in a real Chromium; skipped, loudly, where there is none
	$(PYTEST) tests/e2e -q -rs -n $(JOBS) --dist loadfile

.PHONY: screenshots
screenshots: setup ## Pictures of every view and state into build/screenshots, and those of the documents; ARGS=--readme
	$(BIN)/python -m tests.e2e.screenshots $(ARGS)

.PHONY: recording
recording: setup ## Record submit, scale, kill, logs and explain from a real run into docs/images/session.cast and .svg
	@$(BIN)/python -m pip install --quiet --editable ".[recording]"
	$(BIN)/python -m tests.e2e.recording

.PHONY: page-speed
page-speed: setup ## First paint, frames and long tasks with 1,000 jobs, 256 workers, a million log lines; ARGS="--lines 10000"
	$(BIN)/python -m tests.e2e.speed $(ARGS)

.PHONY: gpu
gpu: setup ## What needs a GPU; skipped, loudly, where there is none
	$(PYTEST) tests/gpu -q -rs

.PHONY: check
check: setup ## Exactly what CI runs; the tests come last
	$(MAKE) --jobs=2 --output-sync=target lint types arch web docs deps audit-mendable
	$(MAKE) test

.PHONY: fmt
fmt: setup ## Format and fix what can be fixed
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

.PHONY: lint
lint: setup ## Format and lint checks
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

.PHONY: types
types: setup ## mypy, strict
	$(BIN)/mypy

.PHONY: arch
arch: setup ## Import contracts: who may import whom
	$(BIN)/lint-imports

.PHONY: web
web: setup ## Check, test and build the page
	cd web && ../$(BIN)/npm run check

.PHONY: docs
docs: setup ## Check that generated parts of the documents are current (make docs-fix writes them)
	$(BIN)/python scripts/status_diagram.py --check
	$(BIN)/python scripts/scheduling_trace.py --check
	$(BIN)/python scripts/plan_example.py --check
	$(BIN)/python scripts/reference.py --check

.PHONY: docs-fix
docs-fix: setup
	$(BIN)/python scripts/status_diagram.py
	$(BIN)/python scripts/scheduling_trace.py
	$(BIN)/python scripts/plan_example.py
	$(BIN)/python scripts/reference.py

.PHONY: docs-site
docs-site: setup ## The documents as a site in build/docs/site; fails at a link that leads nowhere
	$(BIN)/python scripts/docs_site.py

.PHONY: deps
deps: setup ## Check that dependencies are bounded, fit together, and have a tested release each (make deps-fix writes these)
	$(BIN)/python scripts/dependencies.py --check

.PHONY: deps-newest
deps-newest: setup
	scripts/setup.sh --newest

.PHONY: deps-fix
deps-fix: setup
	$(BIN)/python scripts/dependencies.py

.PHONY: audit
audit: setup ## Known advisories against the dependencies; needs the network, and says what was skipped without it
	$(BIN)/python scripts/audit.py $(ARGS)

.PHONY: audit-mendable
audit-mendable: setup
	$(BIN)/python scripts/audit.py --mendable

.PHONY: bench
bench: setup ## Measure Rubato beside DDP, torchrun, Ray Train and torchft; ARGS="--peers rubato,ddp --rounds 1"
	@$(BIN)/python -m pip install --quiet --editable ".[bench]" || echo "torchft is not to be had here: it will be shown as failed"
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-prefetch
bench-prefetch: setup ## Step time with and without reading ahead; ARGS="--rounds 1"
	$(BIN)/python -m benchmarks.prefetch $(ARGS)

.PHONY: bench-joins
bench-joins: setup ## The pause of a join, by the size of the model; ARGS="--widths 1780 --rounds 1"
	$(BIN)/python -m benchmarks.join_size $(ARGS)

.PHONY: bench-checkpoints
bench-checkpoints: setup ## What checkpoints cost the training; ARGS="--storage s3://bucket/bench"
	$(BIN)/python -m benchmarks.checkpoint_stall $(ARGS)

.PHONY: bench-cluster
bench-cluster: setup ## Start, scaling and losses on the whole service, as REST tells them; ARGS="--rounds 1"
	$(BIN)/python -m benchmarks.cluster $(ARGS)

.PHONY: bench-allocator
bench-allocator: setup ## What keeping freed memory is worth
	$(BIN)/python -m benchmarks.allocator $(ARGS)

.PHONY: bench-gather
bench-gather: setup ## How the reduced gradient is best sent to all: all-gather, all-to-all or messages
	$(BIN)/python -m benchmarks.gather $(ARGS)

.PHONY: bench-steady
bench-steady: setup ## Take a steady step apart, beside DDP on the same model; ARGS="--workers 1,2"
	$(BIN)/python -m benchmarks.steady $(ARGS)

.PHONY: bench-strategies
bench-strategies: setup ## Exchanges of the strategies on emulated slow links, measured and predicted; needs root
	$(BIN)/python -m benchmarks.strategies $(ARGS)

.PHONY: bench-strategy-steps
bench-strategy-steps: setup ## Whole steps of the strategies on emulated slow links (two hours); ARGS="--mbit 50 --latency-ms 0"; needs root
	$(BIN)/python -m benchmarks.strategy_steps $(ARGS)

.PHONY: bench-published
bench-published: setup ## Trees, separated layers and sketches beside what the literature compares them with; needs root
	$(BIN)/python -m benchmarks.published $(ARGS)

.PHONY: bench-parity
bench-parity: setup ## What each strategy learns, beside whole gradients (an hour and a half on 2 cores); ARGS="--seeds 3 --recipes char-lm"
	$(BIN)/python -m benchmarks.parity $(ARGS)

.PHONY: load
load: setup ## What the service bears, on SQLite and PostgreSQL; ARGS="--scenarios listing --rounds 1"
	$(BIN)/python -m benchmarks.load $(ARGS)
