# Everything happens in one environment, .venv, built from requirements-dev.lock (every package by its hash).
# uv makes it faster where it is installed; pip alone will do.  VENV=dir uses another place, PYTHON=program another Python.

VENV ?= .venv
BIN := $(VENV)/bin
# Where pytest-xdist is installed, the tests run in three processes on two processors: some of their time is waiting for
# other processes, and with more of them they only wait for each other. A file stays in one process, so that what its
# tests share is made once; long ones come first (tests/conftest.py). PYTEST_ARGS="-n 0" for one process.
# A part of them, after `make environment`:  .venv/bin/python -m pytest -m "not deep" tests/cli -k kernel
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS := $(shell expr \( $(PROCESSORS) \* 3 + 1 \) / 2)
PYTEST_ARGS ?= $(shell $(BIN)/python -c 'import xdist' 2>/dev/null && printf -- '-n %s --dist loadfile --no-loadscope-reorder' $(WORKERS))
export VENV PYTHON

# Tests of memory, which coverage's own tracer would falsify.
UNMEASURED := tests/keeper/test_keeper_ending.py::test_the_keeper_is_small
# Modules that only decide: by these names they are under the contract "Deciding is separate from doing", too.
PURE := due outcome queue schedule session_set pool control_machine
space := $(subst x, ,x)
PURE_FILES := $(subst $(space),$(shell printf ,),$(foreach name,$(PURE),*/$(name).py))

.PHONY: help environment peers demo test deep lint types contracts unmeasured coverage bench hops weight density lock dist deb brew notes clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1	\2/' | expand -t 24

environment: ## build .venv from the lock, if it is not up to date
	@.ci/environment

peers: environment ## build what only `make deep` needs: Python environments and agent CLIs, by hash; a machine's kernel
	@.ci/peers
	@.ci/agents
	@.ci/machine

demo: ## see it work: a daemon, three tools, a trajectory compared with scipy's
	@.ci/demo

test: environment ## what guards a change: style, types, who imports whom, and every promise once
	@$(MAKE) --no-print-directory -j 3 lint types contracts
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not deep"

deep: environment peers ## the rest: many seeds and examples, real peers, agent CLIs and systemd, and coverage
	@$(MAKE) --no-print-directory unmeasured coverage

lint: environment ## style: ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: environment ## types: mypy
	$(BIN)/mypy

contracts: environment ## who may import whom: import-linter
	PYTHONPATH=.:cli $(BIN)/lint-imports

unmeasured: environment ## the few tests that cannot run under coverage
	$(BIN)/python -m pytest -q $(UNMEASURED)

# Each measured process leaves a file. None of them in this folder, which is on the tests' interpreter's path: a spare
# kernel is not used, and rightly, when something has changed where modules are looked for.
coverage: export COVERAGE_FILE := $(CURDIR)/.coverage.d/found
coverage: export PX_TEST_DEEP := 1
coverage: environment peers ## all tests, measured in all processes, with two gates: nine tenths, and all of what decides
	rm -rf .coverage .coverage.* && mkdir -p .coverage.d .hypothesis
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --fail-under=90 --format=total || { $(BIN)/coverage report; exit 1; }
	$(BIN)/coverage report --fail-under=100 --include='$(PURE_FILES)'

bench: environment ## figures: medians, and ratios within one interleaved run
	$(BIN)/python tests/bench/run_all.py

hops: environment ## what a warm call, a cell and an execution pass in the control plane: an introduction to the code
	$(BIN)/python -m pytest -q -s -n 0 tests/repo/test_hops.py

weight: ## lines, files, classes and tests of each folder
	@python3 tests/repo/weight.py

density: environment ## how densely each package is written, beside aiohttp and click
	@$(BIN)/python tests/repo/density.py

lock: ## resolve the dependencies anew and write all lock files (needs uv)
	@.ci/lock

dist: environment ## source distribution and wheel in dist/, where `make deb` leaves its package, too
	rm -f dist/*.tar.gz dist/*.whl
	$(BIN)/python -m build --no-isolation

deb: environment ## Debian package in dist/, with its Python packages in a private environment (on Debian)
	@.ci/deb

brew: ## print a Homebrew formula for the source distribution, which is built for it
	@$(MAKE) --no-print-directory dist >&2
	@.ci/brew

notes: ## print the release notes: the newest part of CHANGELOG.md
	@awk '/^## / { part++ } part == 1' CHANGELOG.md

clean: ## remove all that is built, and the environments
	rm -rf .venv .demo dist build .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
