# Two commands, each complete on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

.PHONY: run test check test-slow docs benchmarks clean

run: $(VENV)/ready
	$(BIN)/assay train recipes/seed.toml

test: check
	$(BIN)/python -m pytest -n 2

check: $(VENV)/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build

test-slow: $(VENV)/ready-test
	$(BIN)/python -m pytest -m slow

docs: $(VENV)/ready-test
	$(BIN)/python -m sphinx -W -q docs docs/_build
	@echo docs/_build/index.html

# torch goes first and alone: other packages would bring a build of several gigabytes with them.
$(VENV)/ready: requirements/constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Python 3.11, 3.12 or 3.13 is needed, $$($(PYTHON) --version) was found; try: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/ready-test: $(VENV)/ready
	$(PIP) -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) docs/_build
