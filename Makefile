# What people and CI call. Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check bench clean

# A picture of four simulated operating conditions, and the table of what is in them.
demo: .venv/demo
	$(BIN)/bearcat data check simulated
	$(BIN)/bearcat data show simulated --domain N15_M07_F10 --domain N09_M07_F10 --out demo/shift.png
	@echo "Open demo/shift.png: the same faults at 1500 and at 900 rpm, and how they shift."

test: check
	$(BIN)/python -m pytest

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/dev
	$(BIN)/python benchmarks/data_speed.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing bearcat into .venv (a few minutes the first time)"
	$(PIP) -e '.[all]'
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing bearcat and its development tools into .venv (a few minutes the first time)"
	$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv demo
