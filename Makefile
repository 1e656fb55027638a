# Two commands do all set-up on a fresh machine with Python 3.11 or 3.12: `make demo`, `make test`.

# Tried by running it: a name on PATH may be a shim of a version that is not installed.
PYTHON ?= $(shell for name in python3.12 python3.11 python3 python; do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
	2>/dev/null && echo $$name && break; done)
# Installed first and alone, so that nothing else chooses its version or its kind.
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip

# A folder of the repository must never be imported under its bare name.
export PYTHONSAFEPATH := 1

.PHONY: help demo test lint format clean

help:
	@echo 'make demo     live one story, kill -9 included, and check every promise'
	@echo 'make test     lint, types, layers and all tests that this machine can run'
	@echo 'make lint     all of that but the tests'
	@echo 'make format   rewrite the sources in the one format'
	@echo 'make clean    remove the environment and every cache'

demo: $(VENV)/.runtime
	$(BIN)/statevisor demo

# Where CI is set pytest works out whole diffs, and that of two states takes minutes.
test: lint
	env -u CI -u BUILD_NUMBER $(BIN)/pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache

# Each stamp is written when its step has ended well, so a broken set-up goes on where it broke.
$(VENV)/.python:
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or 3.12 with venv is needed: make PYTHON=...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.torch: $(VENV)/.python
	$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.runtime: $(VENV)/.torch pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime pyproject.toml
	$(PIP) install --group dev
	@touch $@
