# The commands for developers and CI. `make` alone lists the targets.

PYTHON  ?= python3
PORT    ?= 8000
BACKEND ?= mlx
MODEL   ?=
ARGS    ?=
WORKERS ?= 4

PLUGINS  := $(patsubst plugins/%/pyproject.toml,plugins/%,$(wildcard plugins/*/pyproject.toml))
PROJECTS := . $(PLUGINS)
SOURCES  := pyproject.toml $(wildcard plugins/*/pyproject.toml plugins/*/hatch_build.py plugins/*/csrc/* plugins/*/csrc/*/*) constraints.txt
EDITABLE := $(foreach project,$(PROJECTS),-e ./$(project))
DRAWS    := $(if $(filter torch vllm sglang,$(BACKEND)),plugins/sampling_torch)
SERVED   := $(filter-out plugins/bench plugins/quantize plugins/sampling_% plugins/backend_% plugins/transport_lattica,$(PLUGINS)) $(DRAWS) $(wildcard plugins/backend_$(BACKEND))

COMPILED := plugins/backend_torch

SERVE  := .venv
DEV    := .venv-dev
WHEELS := .venv-wheels
PEERS  := .venv-peers
ENGINES ?= vllm-0.32.0 vllm-0.31.0 sglang-0.5.23 sglang-0.5.18
CI_ENGINE := vllm-0.32.0
PIP   := -m pip install --quiet --disable-pip-version-check --no-input --constraint constraints.txt

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Environments are installed without bytecode. Tests start a thousand processes, which would each compile all that they
# import: longer than all else that most of them do.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/build/pycache

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help serve test ci ci-engine lint unit nightly engines web docs evidence mac-check wheels clean python
.SECONDARY:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

serve: $(SERVE)/.stamp-$(BACKEND) ## serve MODEL on PORT (8000) with BACKEND (mlx); ARGS are further options
	@exec $(SERVE)/bin/parallax serve $(MODEL) --backend $(BACKEND) --port $(PORT) $(ARGS)

# With CI set, the newest vLLM is tested too: its environment takes 4 GB, which a person's first `make test` should not.
test: $(if $(CI),ci,lint unit) ## run everything a change must pass: lint, types, imports and tests

# The tests of engines and of most plugins run where what they stand on was touched since they passed: tests/passed.json
# knows. EVERYTHING=1 runs those of all plugins.
PASSED := $(DEV)/bin/python -m tests.support.passed

ci: $(DEV)/.stamp ## run `make test`, and the tests of vLLM that are marked ci where what they test was touched
	@$(MAKE) $$($(PASSED) $(CI_ENGINE) >&2 && echo lint unit || echo ci-engine)

# The environment of the engine is made while one core checks types.
ci-engine: $(DEV)/.stamp
	@$(MAKE) build/engines/$(CI_ENGINE)/.stamp & $(MAKE) lint; linted=$$?; wait $$! && exit $$linted
	@$(MAKE) unit
	@$(MAKE) engine-$(CI_ENGINE) ARGS="-m ci"
	@$(PASSED) $(CI_ENGINE) --record

# Each folder of tests is called "tests": in the tests' own run, modules are named from the root, as in pluginA.tests.
PLUGIN_TEST_PATH := . $(sort $(wildcard docs/examples/*-*)) docs/examples/backend-numpy/tests

lint: $(DEV)/.stamp ## check style, formatting, imports between packages, and types
	@echo "ruff check"
	@$(DEV)/bin/ruff check --quiet .
	@echo "ruff format"
	@$(DEV)/bin/ruff format --quiet --check .
	@echo "lint-imports"
	@$(DEV)/bin/lint-imports --no-logo
	@echo "mypy"
	@$(DEV)/bin/mypy --num-workers 3 conftest.py docs/front_page.py parallax_core tests $(wildcard benchmarks plugins/*/parallax_* docs/examples/*/parallax_*)
	@echo "mypy of the plugins' tests"
	@mkdir -p build
	@sed -e 's|^mypy_path = .*|mypy_path = "$(subst $(eval ) ,:,$(addprefix $$MYPY_CONFIG_FILE_DIR/../,$(PLUGIN_TEST_PATH)))"|' -e '/^cache_dir/d' \
		pyproject.toml >build/mypy-plugins.toml
	@$(DEV)/bin/mypy --num-workers 3 --config-file build/mypy-plugins.toml $(wildcard plugins/*/tests plugins/*/engine_tests docs/examples/*/tests)

# OpenBLAS threads spin while they wait for each other, which wastes most of the time when processes share the cores.
unit evidence: export OPENBLAS_NUM_THREADS ?= 1

# WORKERS processes share the tests: four for two cores, since one has the tests of servers first, which wait for half of
# their time, and others wait for links and clocks. Tests chosen by ARGS run in one process.
# DURATIONS=FILE adds what each file of tests took to a JSON file; the record is tests/durations.json.
unit: $(DEV)/.stamp ## run the tests in WORKERS (4) processes, or with ARGS for pytest in one
	@echo "pytest"
	@$(DEV)/bin/python -m pytest $(or $(ARGS),--numprocesses $(WORKERS) --dist worksteal $(if $(EVERYTHING),,$$($(PASSED)))) \
		$(if $(DURATIONS),--store-durations $(abspath $(DURATIONS)))
	@$(if $(ARGS),,$(PASSED) --record)

# The record says what ran. What fails runs once more, and is flaky if it passes then.
nightly: NIGHTLY := $(DEV)/bin/python -m pytest -m nightly --record tests/nightly.json
nightly: $(DEV)/.stamp ## run the tests that `make test` leaves out, type the documentation on machines that have nothing yet, and run all others (two hours)
	@$(NIGHTLY) --numprocesses $(WORKERS) --dist worksteal $(ARGS) || $(NIGHTLY) --last-failed --last-failed-no-failures none
	@$(NIGHTLY) tests/e2e/nightly.py $(ARGS)
	@$(MAKE) unit EVERYTHING=1

# The releases of engines that are tested. Each gets an environment of its own, as `parallax engines install` makes it.
engines: ## build the environment of each engine from nothing, and run its tests there (an hour)
	@rm -rf $(foreach engine,$(ENGINES),build/engines/$(engine))
	@for engine in $(ENGINES); do $(MAKE) engine-$$engine || exit 1; done

# For example engine-vllm-0.32.0, which keeps its environment for the next time.
engine-%: build/engines/%/.stamp
	@echo "pytest of $*"
	@PARALLAX_HOME=$(CURDIR)/build/test-home build/engines/$*/engines/$(firstword $(subst -, ,$*))/bin/python -m pytest \
		plugins/backend_$(firstword $(subst -, ,$*))/engine_tests $(ARGS)

build/engines/%/.stamp: | $(DEV)/.stamp
	@echo "making the environment of $* (once; takes several minutes)"
	@rm -rf $(@D)
	@PARALLAX_HOME=$(CURDIR)/$(@D) $(DEV)/bin/parallax engines install $(firstword $(subst -, ,$*)) \
		--release $(lastword $(subst -, ,$*))
	@$(@D)/engines/$(firstword $(subst -, ,$*))/bin/python $(PIP) pytest pytest-asyncio pytest-timeout
	@touch $@

web: ## build the page of plugins/web from its sources (needs Node 20.19 or later)
	@npm --prefix plugins/web/frontend ci
	@npm --prefix plugins/web/frontend run check
	@npm --prefix plugins/web/frontend run build

docs: $(DEV)/.stamp ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(DEV)/bin/mkdocs build --quiet --strict --site-dir site
	@echo "site/index.html"

evidence: $(DEV)/.stamp ## run the benchmarks that have no result yet; delete a result to measure again
	@$(DEV)/bin/python -m benchmarks --missing

mac-check: $(DEV)/.stamp ## check the MLX backend on a Mac, and print a report to paste into an issue (takes a while)
	@$(DEV)/bin/python -m benchmarks.mac_check "$$($(DEV)/bin/parallax models pull smollm2-135m)" --out build/mac-check.md

# The kernels of the torch backend take longest, so they come last; without a compiler its wheel has none, and says so.
wheels: $(WHEELS)/.stamp ## build the wheel of every distribution into dist/
	@rm -f dist/*.whl
	@for project in $(filter-out $(COMPILED),$(PROJECTS)) $(COMPILED); do \
		(cd $$project && $(CURDIR)/$(WHEELS)/bin/python -m hatchling build --target wheel --directory $(CURDIR)/dist) || exit 1; \
	done

clean: ## delete everything the targets above made, including the environments
	rm -rf $(SERVE) $(DEV) $(WHEELS) $(PEERS) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "error: '$(PYTHON)' was not found" >&2; \
		echo "hint: install Python 3.11 or newer, or choose one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); Parallax needs Python 3.11 or newer" >&2; \
		echo "hint: choose another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: '$(PYTHON)' cannot make virtual environments" >&2; \
		echo "hint: install its venv module (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

# The environments: one for serving, with nothing but its requirements, one for development, and one for building wheels.
# An environment is updated when a file that defines its contents is newer than its stamp.
# Most modules installed are never imported, so none is compiled to bytecode in advance.

$(SERVE)/.stamp-$(BACKEND): $(SOURCES) | python
	@echo "making $(SERVE), for serving with $(BACKEND) (once; takes a minute or two)"
	@$(PYTHON) -m venv $(SERVE)
	@$(SERVE)/bin/python $(PIP) --no-compile pip hatchling editables
	@echo "installing parallax-core, $(patsubst plugins/%,%,$(SERVED)) and their requirements"
	@$(SERVE)/bin/python $(filter-out --quiet,$(PIP)) --no-compile --no-build-isolation $(foreach project,. $(SERVED),-e ./$(project))
	@touch $@

$(WHEELS)/.stamp: constraints.txt | python
	@echo "making $(WHEELS), for building wheels (once; takes a few seconds)"
	@$(PYTHON) -m venv $(WHEELS)
	@$(WHEELS)/bin/python $(PIP) --no-compile hatchling
	@touch $@

$(DEV)/.stamp: $(SOURCES) | python
	@echo "making $(DEV), for development (once; takes a few minutes)"
	@$(PYTHON) -m venv $(DEV)
	@$(DEV)/bin/python $(PIP) --no-compile pip hatchling editables
	@echo "installing parallax-core, $(patsubst plugins/%,%,$(PLUGINS)), tools, reference libraries and their requirements"
	@$(DEV)/bin/python $(PIP) --no-compile --no-build-isolation --group dev $(EDITABLE)
	@touch $@
