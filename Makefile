# `make demo` and `make test` work from a fresh clone: they make $(VENV) and install into it first.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?= -n 2 --dist worksteal

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $(PIP_ARGS)
SPEC := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint format clean
.NOTPARALLEL: # two pips in one environment would collide
.DELETE_ON_ERROR:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "variables: PYTHON=$(PYTHON) VENV=$(VENV) PYTEST_ARGS='$(PYTEST_ARGS)' PIP_ARGS='$(PIP_ARGS)'"

demo: $(VENV)/.installed ## install the package and run its demo
	$(BIN)/dnn2gp demo

test: $(VENV)/.installed-test ## install with the test extras and run all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## ruff, ruff format, pyright and the import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## sort the imports and format in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp is newer than pyproject.toml and constraints.txt or is made anew; larger installs contain
# the smaller ones and stamp them too.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet "pip>=21.3" # editable installs from pyproject.toml

$(VENV)/.installed: $(SPEC) | $(BIN)/python
	@echo "installing dnn2gp[cli] into $(VENV)"
	$(PIP_INSTALL) -e ".[cli]"
	@touch $@

$(VENV)/.installed-test: $(SPEC) | $(BIN)/python
	@echo "installing dnn2gp[test] into $(VENV)"
	$(PIP_INSTALL) -e ".[test]"
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: $(SPEC) | $(BIN)/python
	@echo "installing dnn2gp[dev] into $(VENV)"
	$(PIP_INSTALL) -e ".[dev]"
	@touch $(VENV)/.installed $(VENV)/.installed-test $@

# The peers of the benchmarks have an environment of their own. They come with --no-deps: see benchmarks/peers.txt.
BENCH_VENV ?= .venv-bench
BENCH_ARGS ?=
BENCH_PIP := $(BENCH_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $(PIP_ARGS)

.PHONY: bench
bench: $(BENCH_VENV)/.installed ## install the peers, measure speed and memory (BENCH_ARGS="--quick" for a smoke run)
	$(BENCH_VENV)/bin/python -m benchmarks $(BENCH_ARGS)

.PHONY: test-compat
test-compat: $(BENCH_VENV)/.installed-test ## our numbers against those of the peers, in the environment of the benchmarks
	$(BENCH_VENV)/bin/python -m pytest -q tests/compat

.PHONY: test-browser
test-browser: $(VENV)/.installed-browser ## the report in a headless Chromium (installs it with apt-get where it can)
	@if [ ! -x /usr/bin/chromium ] || [ ! -x /usr/bin/chromedriver ]; then $(INSTALL_CHROMIUM); fi
	$(BIN)/python -m pytest -m browser tests/browser

# Without apt-get nothing is installed, and the tests say what is missing. sudo resets the environment, hence env.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo )env DEBIAN_FRONTEND=noninteractive
INSTALL_CHROMIUM = if command -v apt-get >/dev/null; then $(AS_ROOT) apt-get update -qq && \
	$(AS_ROOT) apt-get install -y -qq --no-install-recommends chromium chromium-driver; fi

$(VENV)/.installed-browser: $(SPEC) | $(BIN)/python
	@echo "installing dnn2gp[browser] into $(VENV)"
	$(PIP_INSTALL) -e ".[browser]"
	@touch $(VENV)/.installed $(VENV)/.installed-test $@

.PHONY: tuning-table
tuning-table: $(VENV)/.installed ## evidence beside cross-validation: measures, and writes the table in docs/tuning.md
	$(BIN)/python -m benchmarks.tuning_table

.PHONY: bench-optimizers
bench-optimizers: $(BENCH_VENV)/.installed ## the cost of a step of VOGN and OGN beside Adam's
	$(BENCH_VENV)/bin/python -m benchmarks --only optimizers $(BENCH_ARGS)

$(BENCH_VENV)/.installed: $(SPEC) benchmarks/requirements.txt benchmarks/peers.txt
	@echo "installing dnn2gp and its peers into $(BENCH_VENV)"
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	@echo '*' > $(BENCH_VENV)/.gitignore
	$(BENCH_VENV)/bin/python -m pip install --disable-pip-version-check --quiet "pip>=21.3"
	$(BENCH_PIP) -e ".[all]" -r benchmarks/requirements.txt
	$(BENCH_PIP) --no-deps -r benchmarks/peers.txt
	@touch $@

$(BENCH_VENV)/.installed-test: $(BENCH_VENV)/.installed
	$(BENCH_PIP) -e ".[test]"
	@touch $@
