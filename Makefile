# Everything happens in one environment, .venv, built from requirements-dev.lock (every package by its hash).
# uv makes it faster where it is installed; pip alone will do.  VENV=dir uses another place, PYTHON=program another Python.

VENV ?= .venv
BIN := $(VENV)/bin
# Where pytest-xdist is installed, the tests run in as many processes as there are processors. PYTEST_ARGS="-n 0" for one.
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PYTEST_ARGS ?= $(shell $(BIN)/python -c 'import xdist' 2>/dev/null && printf -- '-n %s' $(PROCESSORS))
export VENV PYTHON

# Tests of memory, which coverage's own tracer would falsify.
UNMEASURED := tests/keeper/test_keeper_ending.py::test_the_keeper_is_small

.PHONY: help environment peers demo test lint types contracts unmeasured coverage bench lock dist clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1	\2/' | expand -t 24

environment: ## build .venv from the lock, if it is not up to date
	@.ci/environment

peers: environment ## build the environments of tests/peers/*.lock, which only tests need
	@.ci/peers

demo: environment ## see it work: a daemon, three tools, a trajectory compared with scipy's
	@.ci/demo

test: lint types contracts unmeasured coverage ## all that guards a change

lint: environment ## style: ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: environment ## types: mypy
	$(BIN)/mypy

contracts: environment ## who may import whom: import-linter
	PYTHONPATH=.:cli $(BIN)/lint-imports

unmeasured: environment ## the few tests that cannot run under coverage
	$(BIN)/python -m pytest -q $(UNMEASURED)

coverage: environment peers ## all tests, measured in all processes, with the gates of tests/repo/coverage_gate.py
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/python tests/repo/coverage_gate.py

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
