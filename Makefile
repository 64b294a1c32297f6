# What people run is what CI runs. Needs Python 3.11 or later and make; nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MEMBERS := contracts/pyproject.toml worker/pyproject.toml
SOURCES := contracts/src worker/src tests examples bench docs

.PHONY: help demo test sweep chaos check format bench schemas trace-picture conventions lock clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     a worker, an embedded nats-server and one streamed run in this terminal"
	@echo "make test     all tests"
	@echo "make sweep    the leak test as a table, and its short form in docs/observability.md"
	@echo "make chaos    RUNS=2000 SEED=7: everything breaks, and nothing is lost or doubled (minutes)"
	@echo "make check    formatting, lint, types, layers, schemas"
	@echo "make bench    benchmarks, side by side (several minutes; nothing else should be running)"
	@echo "make schemas  write contracts/schemas and the tables of docs/contract.md"
	@echo "make trace-picture  draw docs/trace.svg again, from the spans of a run"
	@echo "make conventions  compare what is emitted with OpenTelemetry's conventions again"
	@echo "make lock     pin the newest dependencies again"

# The dependencies first, every one checked against its hash; then the two members without any.
$(VENV)/.worker: requirements-worker.txt $(MEMBERS)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the worker's dependencies into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements-worker.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation -e contracts -e worker
	@touch $@

$(VENV)/.dev: requirements.txt $(VENV)/.worker
	@echo "installing what tests and checks need into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements.txt
	@touch $@

$(VENV)/.bench: requirements-bench.txt $(VENV)/.worker
	@echo "installing what the benchmarks compare with into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements-bench.txt
	@touch $@

demo: $(VENV)/.worker
	@$(BIN)/hayrunner demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

sweep: $(VENV)/.dev
	$(BIN)/python -m tests.sweep

RUNS ?= 300
WORKERS ?= 3
chaos: $(VENV)/.dev
	$(BIN)/python -m tests.chaos --runs $(RUNS) --workers $(WORKERS) $(if $(SEED),--seed $(SEED)) $(if $(CLUSTER),--cluster) $(if $(SHOW),--show $(SHOW))

check: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m hayrunner_contracts.schema --check
	$(PIP) check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/.bench
	$(BIN)/python bench/loop_overhead.py
	$(BIN)/python bench/streams.py
	$(BIN)/python bench/cancel.py
	$(BIN)/python bench/telemetry.py
	$(BIN)/python bench/checkpoints.py

schemas: $(VENV)/.dev
	$(BIN)/python -m hayrunner_contracts.schema

trace-picture: $(VENV)/.dev
	$(BIN)/python docs/trace_picture.py

conventions: $(VENV)/.dev
	$(BIN)/python docs/conventions.py

# uv resolves for every platform at once; no index address gets into the files.
lock:
	@test -x $(VENV)-lock/bin/uv || ($(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip install --quiet uv)
	@for name in requirements-worker requirements requirements-bench; do \
	  $(VENV)-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	    --no-annotate --no-header --no-emit-index-url $$name.in -o $$name.txt || exit 1; \
	done

clean:
	rm -rf $(VENV) $(VENV)-lock .pytest_cache .ruff_cache .import_linter_cache .hypothesis
