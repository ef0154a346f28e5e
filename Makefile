# `make demo` and `make test` work from a fresh clone: they create $(VENV) and install into it what they need.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?= -n 2 --dist worksteal
# COVERAGE=1 measures coverage too, and fails below the floor in pyproject.toml.
COVERAGE ?=

BIN := $(VENV)/bin
PIP := -m pip install --disable-pip-version-check --quiet -c constraints.txt $(PIP_ARGS)
SPEC := pyproject.toml constraints.txt
COVERAGE_ARGS := $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast fuzz test-browser test-compat coverage lint format bench bench-optimizers tuning-table averages-table vogn-table clean
.NOTPARALLEL: # two pips in one environment would collide
.DELETE_ON_ERROR:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "variables: PYTHON=$(PYTHON) VENV=$(VENV) PYTEST_ARGS='$(PYTEST_ARGS)' PIP_ARGS='$(PIP_ARGS)' COVERAGE=$(COVERAGE)"

demo: $(VENV)/.installed ## install the package with its command line and run the demo
	$(BIN)/dnn2gp demo

test: $(VENV)/.installed-test ## run all tests (COVERAGE=1: with coverage)
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(COVERAGE_ARGS)

test-fast: $(VENV)/.installed-test ## run the tests that are not marked slow, for the loop of work
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow"

fuzz: $(VENV)/.installed-test ## convert thousands of random networks and open thousands of damaged files
	DNN2GP_FUZZ_NETWORKS=2000 DNN2GP_FUZZ_FILES=5000 $(BIN)/python -m pytest -s \
		tests/robust/test_network_fuzzer.py tests/robust/test_file_fuzzer.py

coverage: ## run all tests, and fail if too little of the code is covered
	$(MAKE) test COVERAGE=1

test-browser: $(VENV)/.installed-browser ## test the reports in a headless Chromium (installed with apt-get where possible)
	@if [ ! -x /usr/bin/chromium ] || [ ! -x /usr/bin/chromedriver ]; then $(INSTALL_CHROMIUM); fi
	$(BIN)/python -m pytest -m browser tests/browser

lint: $(VENV)/.installed-dev ## ruff, pyright, the import order, and dead code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/vulture

format: $(VENV)/.installed-dev ## sort imports and format in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tuning-table: $(VENV)/.installed ## compare evidence with cross-validation, and write the table in docs/tuning.md
	$(BIN)/python -m benchmarks.tuning_table

averages-table: $(VENV)/.installed ## compare ways to average probabilities, and write the table in docs/predictions.md
	$(BIN)/python -m benchmarks.averages

vogn-table: $(VENV)/.installed ## compare VOGN with Adam on MNIST, and write the table in docs/online-newton.md
	$(BIN)/python -m benchmarks.vogn --resume

clean: ## remove the environments and all caches
	rm -rf $(VENV) $(BENCH_VENV) build dist .coverage .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp older than pyproject.toml or constraints.txt is made again; an install with more extras also
# stamps the smaller ones that it contains.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet "pip>=21.3" # editable installs from pyproject.toml

$(VENV)/.installed: EXTRA := cli
$(VENV)/.installed-test: EXTRA := test
$(VENV)/.installed-dev: EXTRA := dev
$(VENV)/.installed-browser: EXTRA := browser
$(VENV)/.installed $(VENV)/.installed-test $(VENV)/.installed-dev $(VENV)/.installed-browser: $(SPEC) | $(BIN)/python
	@echo "installing dnn2gp[$(EXTRA)] into $(VENV)"
	$(BIN)/python $(PIP) -e ".[$(EXTRA)]"
	@touch $(VENV)/.installed $(if $(filter cli,$(EXTRA)),,$(VENV)/.installed-test) $@

# Without apt-get nothing is installed, and the tests say what is missing. sudo resets the environment, hence env.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo )env DEBIAN_FRONTEND=noninteractive
INSTALL_CHROMIUM = if command -v apt-get >/dev/null; then $(AS_ROOT) apt-get update -qq && \
	$(AS_ROOT) apt-get install -y -qq --no-install-recommends chromium chromium-driver; fi

# Other libraries have an environment of their own. They are installed with --no-deps: see benchmarks/peers.txt.
BENCH_VENV ?= .venv-bench
BENCH_ARGS ?=
BENCH_BIN := $(BENCH_VENV)/bin

bench: $(BENCH_VENV)/.installed ## measure speed and memory, compared with other libraries (BENCH_ARGS="--quick")
	$(BENCH_BIN)/python -m benchmarks $(BENCH_ARGS)

bench-optimizers: $(BENCH_VENV)/.installed ## measure the cost of a step of VOGN and OGN, compared with Adam
	$(BENCH_BIN)/python -m benchmarks --only optimizers $(BENCH_ARGS)

test-compat: $(BENCH_VENV)/.installed-test ## compare our numbers with those of other libraries
	$(BENCH_BIN)/python -m pytest -q tests/compat

$(BENCH_VENV)/.installed: $(SPEC) benchmarks/requirements.txt benchmarks/peers.txt
	@echo "installing dnn2gp and other libraries into $(BENCH_VENV)"
	test -x $(BENCH_BIN)/python || $(PYTHON) -m venv $(BENCH_VENV)
	@echo '*' > $(BENCH_VENV)/.gitignore
	$(BENCH_BIN)/python -m pip install --disable-pip-version-check --quiet "pip>=21.3"
	$(BENCH_BIN)/python $(PIP) -e ".[all]" -r benchmarks/requirements.txt
	$(BENCH_BIN)/python $(PIP) --no-deps -r benchmarks/peers.txt
	@touch $@

$(BENCH_VENV)/.installed-test: $(BENCH_VENV)/.installed
	$(BENCH_BIN)/python $(PIP) -e ".[test]"
	@touch $@
