# Two commands, each complete on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

.PHONY: run test check docs benchmark-trl clean

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

# TRL has an environment of its own, beside ours.
benchmark-trl: $(VENV)-trl/ready
	$(VENV)-trl/bin/python benchmarks/rl_step.py

$(VENV)-trl/ready: requirements/constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-trl
	$(VENV)-trl/bin/pip install --quiet -c requirements/constraints.txt torch
	$(VENV)-trl/bin/pip install --quiet -c requirements/constraints.txt -e . trl==1.16.0 transformers accelerate==1.15.0 datasets==5.2.0
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-trl docs/_build
