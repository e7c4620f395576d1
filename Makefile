# Two commands on a bare machine with python3 and make:  make quickstart   and   make test
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
QUICKSTART ?= quickstart

.PHONY: quickstart test test-fast check format bench bench-diagnosis bench-damage bench-live docs reference dist audit clean

# pip compiles on one core what it installs, 17 000 files or 38 s of CPU; two of them are no Python 3.11. A third
# of it, such as the tests of packages, is loaded by nobody, or compiled when it is.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[dev]'
	$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/(tests?|sklearn|databricks|pip|setuptools)/' $(VENV)/lib || true
	touch $(STAMP)

quickstart: $(STAMP)  ## simulate, train, predict
	XECTOOL=$(abspath $(BIN))/xectool sh examples/quickstart.sh $(QUICKSTART)

test test-fast: export OMP_NUM_THREADS ?= 1
# some hundred processes are started: each would compile every module anew where writing bytecode is switched off
test test-fast check: export PYTHONDONTWRITEBYTECODE :=

test: $(STAMP)  ## every test, the slow ones too
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

test-fast: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

check: $(STAMP)  ## the one gate: format, lint, types, layers, tests
	$(BIN)/ruff format --check xectool tests benchmarks docs/reference examples
	$(BIN)/ruff check xectool tests benchmarks docs/reference examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

format: $(STAMP)
	$(BIN)/ruff format xectool tests benchmarks docs/reference examples
	$(BIN)/ruff check --fix xectool tests benchmarks docs/reference examples

bench: $(STAMP)  ## ratios against plain PyTorch and plain uproot, in one run
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.loading --events 2500
	$(BIN)/python -m benchmarks.recorder --rounds 60
	$(BIN)/python -m benchmarks.loop

bench-diagnosis bench-damage bench-live: export OMP_NUM_THREADS ?= 1

bench-diagnosis: $(STAMP)  ## how often `diagnose run` names what was done to real trainings
	$(BIN)/python -m benchmarks.diagnosis

bench-damage: $(STAMP)  ## what `check-data`, `inspect-ckpt` and `export` find in damaged files, and in good ones
	$(BIN)/python -m benchmarks.damage

bench-live: $(STAMP)  ## what is said of real runs that hang, are killed, controlled, or have several ranks
	$(BIN)/python -m benchmarks.live

docs: $(STAMP)  ## the documentation as a site, in build/site; fetches nothing
	$(BIN)/zensical build --strict

dist: $(STAMP)  ## wheel and source distribution, in dist/
	$(BIN)/python -m build --no-isolation --outdir dist

reference: $(STAMP)  ## the reference pages, from the code
	$(BIN)/python docs/reference/generate.py

audit:  ## known vulnerabilities of what is installed here; asks the advisory database on the internet
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install -q pip-audit
	build/audit/bin/pip-audit --strict --skip-editable --path $(VENV)/lib/python*/site-packages

clean:
	rm -rf $(VENV) $(QUICKSTART) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
