# What people and CI call: `make demo`, `make test` and `make acceptance` do everything.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check acceptance programs bench docs clean

# Simulated pumps: a model for one without labels, later recordings diagnosed with it (status 1 of predict says that
# there are alarms), and a small grid of CAT and its baselines.
demo: .venv/demo
	$(BIN)/python examples/your_own_folder.py demo --only-make
	$(BIN)/bearcat adapt --data demo/recordings --source pump-A-1500rpm --target pump-B-1500rpm --out demo/adapt
	$(BIN)/bearcat predict demo/adapt/model demo/new || test $$? -eq 1
	$(BIN)/bearcat bench run grids/smoke.toml --store demo/bench
	$(BIN)/bearcat bench report grids/smoke.toml --store demo/bench --out demo/methods
	@echo "Open demo/adapt/report.html in a browser."

# Every day: style, types, and the tests that need neither browser nor server. A few minutes on two cores.
test: check
	$(BIN)/python -m pytest --durations=5

check: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Before a release: a browser, PostgreSQL, Ray, the wheel, the documents and their commands, long runs. Ten minutes more.
acceptance: .venv/acceptance programs
	$(BIN)/python -m pytest tests/acceptance --durations=5
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

# Programs that are no Python packages. Where they cannot be installed, their tests are skipped and say so.
programs:
	@missing=""; \
	command -v chromium || command -v chromium-browser || command -v google-chrome || missing="chromium"; \
	ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null || missing="$$missing postgresql"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then \
		apt-get update -qq && apt-get install -y -qq $$missing || echo "not installed: $$missing; their tests are skipped"; \
	else echo "not here, and no right to install: $$missing; their tests are skipped"; fi >&2

# The documents as a site in site/, with every link checked.
docs: .venv/acceptance
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html, or run $(BIN)/mkdocs serve for the search"

# Small, a few minutes on two cores. The scripts' --help says how to measure more, or on a GPU.
bench: .venv/test
	$(BIN)/python benchmarks/speed.py --steps 20
	$(BIN)/python benchmarks/recording_speed.py --repeats 20 --starts 3

.venv/bin/python:
	$(PYTHON) -m venv .venv

# What each command installs: bearcat with these extras of pyproject.toml.
.venv/demo: EXTRA = bench
.venv/test: EXTRA = test
.venv/acceptance: EXTRA = acceptance
.venv/demo .venv/test .venv/acceptance: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing bearcat[$(EXTRA)] into .venv (a minute or more the first time)"
	$(PIP) -e '.[$(EXTRA)]'
	@touch $@

clean:
	rm -rf .venv build demo site
