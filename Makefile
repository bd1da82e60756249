PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.fedhet-ready

# Flower would otherwise install every dependency again for each run, and report on its use.
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export FLWR_DISABLE_UPDATE_CHECK := 1
export FLWR_TELEMETRY_ENABLED := 0
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: run test test-slow fab clean

run: $(READY)
	$(BIN)/fedhet run

test: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test-slow: $(READY)
	$(BIN)/pytest -m slow --ignore tests/deploy/test_faults.py --ignore tests/deploy/test_devices.py

fab: $(READY)
	$(BIN)/flwr build

clean:
	rm -rf build dist *.egg-info *.fab .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './$(VENV)' -prune -o -type d -name __pycache__ -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@
