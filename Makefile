# Set-up and the two commands of the README. Everything lives in .venv; pip's own environment variables are honoured.
PYTHON ?= python3
VENV   ?= .venv
ifeq ($(OS),Windows_NT)
BIN    := $(VENV)/Scripts
else
BIN    := $(VENV)/bin
endif
# Versions come from constraints.txt, always: another torch may bring an accelerator's libraries, gigabytes of them.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test slow lint types bench wheel setup clean

demo: $(VENV)/core
	@$(BIN)/python examples/demo.py

test: $(VENV)/dev
	$(BIN)/python -m pytest

slow: $(VENV)/dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

# Each prints one JSON line: a ratio, both sides measured in one run. choosing.py measures quality, for an hour.
bench: $(VENV)/bench
	@for file in $(filter-out benchmarks/choosing.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$file || exit 1; done

# What others would install; tests/wheel.py looks inside, and runs it from outside this folder.
wheel: $(VENV)/dev
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(BIN)/python tests/wheel.py dist

setup: $(VENV)/dev

# A stamp per level of the environment, written when all of it is there: what is installed already is not asked for
# again, so a second run needs no network, and an interrupted one goes on where it stopped.
$(VENV)/core: pyproject.toml constraints.txt | $(VENV)/python
	@echo "Installing into $(VENV): a few minutes, the first time only"
	@$(INSTALL) .
	@touch $@

$(VENV)/dev: $(VENV)/core
	@echo "Installing what tests and checks need"
	@$(INSTALL) '.[dev]'
	@touch $@

$(VENV)/bench: $(VENV)/dev
	@$(INSTALL) '.[bench]'
	@touch $@

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than 3.11: name one that is not, as in 'make PYTHON=python3.12 demo'" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make a virtual environment: on Debian and Ubuntu, 'apt install python3-venv' mends that" >&2; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
