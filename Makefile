# `make` alone lists the targets. PYTHON=python3.12 chooses another Python; the locks are proven on 3.11, x86-64.

ifndef PYTHON
PYTHON := $(shell for candidate in python3.11 python3.12 python3; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$candidate && break; done)
endif
BIN := .venv/bin

# Nothing calls home, nothing is fetched from a model hub, and idle OpenMP threads leave the cores to the others.
export DO_NOT_TRACK = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export MLFLOW_DISABLE_TELEMETRY = true
export RAY_USAGE_STATS_ENABLED = 0
export VLLM_NO_USAGE_STATS = 1
# What engines compile is compiled once for all tests, whose runs have folders of their own.
quiet_test_env = HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/.venv/inductor

.DEFAULT_GOAL := help
.PHONY: help install dev quickstart up down test test-sandboxes test-harness test-units test-training test-learners test-engines agents lint checks format

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## install testgrad and its pinned packages into .venv (4.5 GB; nothing is done twice)
	@$(call installer,)

dev: ## install, and what the checks and tests need too
	@$(call installer,--dev)

quickstart: install ## train a 135M model on generated repair tasks here and now, no server, no GPU
	@$(BIN)/testgrad quickstart

up: install ## start Prefect, MLflow and a worker on this machine, deploy the flows, print the addresses
	@$(BIN)/testgrad up

down: ## stop what up started
	@if [ -x $(BIN)/testgrad ]; then $(BIN)/testgrad down; else echo "nothing is up: testgrad is not installed"; fi

test: dev ## check and test everything: unit tests, then tests/integration with real engines
	@$(MAKE) --no-print-directory -j4 --keep-going --output-sync=line agents test-harness test-training test-sandboxes test-units checks \
		test-learners test-engines

# Side by side, since most of them wait for processes, boots and disks much of the time.
pytest = $(quiet_test_env) $(BIN)/pytest -p no:cacheprovider --durations=15
integration = $(addprefix tests/integration/test_,$(addsuffix .py,$(1)))
training = $(call integration,training_run) tests/integration/crash
learners = $(call integration,algorithms checkpoints experts_and_adapters gpu_engines_on_cpu landing learner learner_exact \
	learner_group sequence_parallel weight_sync)

# All that use Docker one after the other: they look for what others left on its engine.
containers = $(addprefix tests/harness/,test_backend_trials.py pool/test_image_tasks.py)

test-sandboxes:
	@$(pytest) tests/harness/sandbox tests/attacks $(containers)

test-harness:
	@$(pytest) tests/harness --ignore tests/harness/sandbox $(addprefix --ignore ,$(containers))

test-units:
	@$(pytest) $(filter-out tests/harness tests/attacks tests/integration tests/__pycache__ tests/conftest.py,$(wildcard tests/*))

test-training:
	@$(pytest) $(training)

test-learners:
	@$(pytest) $(learners)

test-engines: agents
	@$(pytest) $(filter-out $(training) $(learners),$(wildcard tests/integration/test_*.py))

# Without npm, or a registry, they stay away, and their tests say so.
agents:
	-@$(BIN)/testgrad scaffolds install all

lint: dev checks ## ruff, mypy and the import contracts

checks:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: dev ## rewrite the code in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

define installer
	if [ -z "$(PYTHON)" ]; then \
		if command -v python3 >/dev/null; then python3 deployments/install.py $(1); \
		else echo "testgrad: no Python found: install Python 3.11 (Debian: apt install python3.11 python3.11-venv)" >&2; exit 1; fi; \
	else $(PYTHON) deployments/install.py $(1); fi
endef
