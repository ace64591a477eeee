# Everything happens in one environment, .venv, built from requirements-dev.lock (every package by its hash).
# uv makes it faster where it is installed; pip alone will do.  VENV=dir uses another place, PYTHON=program another Python.

VENV ?= .venv
BIN := $(VENV)/bin
# Where pytest-xdist is installed, the tests run in three processes on two processors: some of their time is waiting for
# other processes, and with more of them they only wait for each other. worksteal keeps a file in one process, so that
# what its tests share is made once (tests/dealing.py). PYTEST_ARGS="-n 0" for one process.
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS := $(shell expr \( $(PROCESSORS) \* 3 + 1 \) / 2)
PYTEST_ARGS ?= $(shell $(BIN)/python -c 'import xdist' 2>/dev/null && printf -- '-n %s --dist worksteal' $(WORKERS))
export VENV PYTHON

# Tests of memory, which coverage's own tracer would falsify.
UNMEASURED := tests/keeper/test_keeper_ending.py::test_the_keeper_is_small

.PHONY: help environment peers demo test lint types contracts rewritten unmeasured coverage rounds bench lock dist clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1	\2/' | expand -t 24

environment: ## build .venv from the lock, if it is not up to date
	@.ci/environment

peers: environment ## build what of tests/peers only tests need: Python environments and agent CLIs, all by hash
	@.ci/peers
	@.ci/agents

demo: environment ## see it work: a daemon, three tools, a trajectory compared with scipy's
	@.ci/demo

test: environment ## all that guards a change
	@$(MAKE) --no-print-directory -j 3 lint types contracts peers rewritten # the peers are downloaded meanwhile
	@$(MAKE) --no-print-directory unmeasured coverage

lint: environment ## style: ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: environment ## types: mypy
	$(BIN)/mypy

contracts: environment ## who may import whom: import-linter
	PYTHONPATH=.:cli $(BIN)/lint-imports

# pytest rewrites every assert when it first sees a file, which takes three times as long as to import it. All processes
# start at once, and each would do all of it: so it is done before, once, and kept as bytecode even where Python is told
# to keep none. What is wrong with a file the tests tell.
rewritten: environment
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -qq --collect-only >/dev/null 2>&1 || true

unmeasured: environment ## the few tests that cannot run under coverage
	$(BIN)/python -m pytest -q $(UNMEASURED)

# Each measured process leaves a file. None of them in this folder, which is on the tests' interpreter's path: a spare
# kernel is not used, and rightly, when something has changed where modules are looked for.
coverage: export COVERAGE_FILE := $(CURDIR)/.coverage.d/found
coverage: environment peers ## all tests, measured in all processes, with the gates of tests/repo/coverage_gate.py
	rm -rf .coverage .coverage.* && mkdir -p .coverage.d .hypothesis
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/python tests/repo/coverage_gate.py

rounds: environment ## all rounds of the tests that kill at random points, of which `test` plays a few
	PX_TEST_ROUNDS=all $(BIN)/python -m pytest $(PYTEST_ARGS) tests/e2e

bench: environment ## figures: medians, and ratios within one interleaved run
	$(BIN)/python tests/bench/run_all.py

lock: ## resolve the dependencies anew and write all lock files (needs uv)
	@.ci/lock

dist: environment ## source distribution and wheel in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

clean: ## remove all that is built, and the environment
	rm -rf .venv .demo dist build .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
