# What people and CI call. Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check bench browser postgresql broker fuzz docs clean

# Simulated bearings: diagnoses recordings from physics, then adapts to another operating condition, with the paper's
# method on the same input beside it. Status 1 of diagnose says that there are alarms.
demo: .venv/demo
	@$(BIN)/bearcat data fetch simulated --domain N09_M07_F10 --set severities=0.15,0.5 --set faults=inner,outer --root demo/recordings > /dev/null
	$(BIN)/bearcat diagnose demo/recordings || test $$? -eq 1
	$(BIN)/bearcat adapt --beside 'dense-CAT*-Temperature' --out demo/adapt
	@echo "Open demo/adapt/report.html in a browser."

test: check browser postgresql broker
	$(BIN)/python -m pytest --durations=5

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of report.html want a Chromium; where there is none and none can be installed they are skipped, and say so.
browser:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then \
		apt-get update -qq && apt-get install -y -qq chromium || echo "Chromium could not be installed; tests in a browser are skipped"; \
	else echo "No Chromium here and no right to install it; tests in a browser are skipped"; fi >&2

# The tests of MQTT want a mosquitto, likewise.
broker:
	@if command -v mosquitto || [ -x /usr/sbin/mosquitto ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then \
		apt-get update -qq && apt-get install -y -qq mosquitto || echo "mosquitto could not be installed; tests of MQTT are skipped"; \
	else echo "No mosquitto here and no right to install it; tests of MQTT are skipped"; fi >&2

# The tests of a store in PostgreSQL start a server of their own from these programs; without them they are skipped.
postgresql:
	@if ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then \
		apt-get update -qq && apt-get install -y -qq postgresql || echo "PostgreSQL could not be installed; its tests are skipped"; \
	else echo "No PostgreSQL here and no right to install it; its tests are skipped"; fi >&2

# The documents as a site in site/, with every link checked. Nothing is loaded from elsewhere; the search wants a server.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html, or run $(BIN)/mkdocs serve for the search"

# Mutated files, stores, messages and requests (docs/security.md): an hour at most, on two cores.
fuzz: .venv/dev
	$(BIN)/python -m tests.fuzz --mutations 10000

# Small, a few minutes on two cores. The scripts' --help says how to measure more, or on a GPU.
bench: .venv/dev
	$(BIN)/python benchmarks/speed.py --steps 20
	$(BIN)/python benchmarks/recording_speed.py --repeats 20 --starts 3

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
	rm -rf .venv demo site
