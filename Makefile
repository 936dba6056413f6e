# Every target sets up what it needs in .venv; nothing else has to be installed but Python 3.11+ and make.
PYTHON ?= python3
PLUGINS := capabilities flags weights cost_hold limits
BIN := .venv/bin

.PHONY: setup demo test matrix alone check bench chaos clean

setup: .venv/ready

.venv/ready: pyproject.toml $(PLUGINS:%=plugins/%/pyproject.toml) examples/signal_http_json/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Harvest needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[testing,dev]' $(PLUGINS:%=-e plugins/%) -e examples/signal_http_json
	@touch $@

demo: setup  ## real work on several workers, checked: make demo [INPUT=folder]
	@$(BIN)/python examples/demo/run.py $(if $(INPUT),"$(INPUT)")

test: setup  ## everything, on the PostgreSQL servers found; under five minutes
	@$(BIN)/pytest -m "not chaos" -n 3 --dist worksteal

matrix: setup  ## what must hold on every PostgreSQL, on the one between: 18 and 15 are in make test
	@$(BIN)/pytest -m matrix -n 3 --harvest-postgresql 16

alone:  ## one plugin's tests with nothing but the core and that plugin: make alone PLUGIN=flags
	$(PYTHON) -m venv --clear .venv/alone
	.venv/alone/bin/pip install --quiet --disable-pip-version-check -e '.[testing]' -e plugins/$(or $(PLUGIN),flags)
	.venv/alone/bin/pytest -q -p no:cacheprovider plugins/$(or $(PLUGIN),flags)

check: setup  ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy bench
	$(BIN)/lint-imports

bench: setup  ## the laws of speed, as ratios in one run
	@$(BIN)/python bench/run.py

chaos: setup  ## long runs of kills and restarts
	@$(BIN)/pytest -m chaos

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
