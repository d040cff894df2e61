# `make demo` and `make test` do all set-up themselves. They need Python 3.11 or newer, make and a network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RECORDS ?=
# The tests of the dashboard need a Chromium, and are skipped without one: apt-get install --no-install-recommends chromium
# Tests wait more than they compute, so more run at a time than there are cores. They share one broker.
TESTERS ?= 5
# Long tests start clusters of their own and measure times, so fewer run side by side.
SLOW_TESTERS ?= 2
WITHIN ?=

.PHONY: help setup demo test test-interrupts test-slow test-all versions release docs lint bench speed peers quirks lock clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Headway needs Python 3.11 or newer; $(PYTHON) is older. Say which to use: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up the environment in $(VENV), once: about 600 MB by the network, Spark most of it. Half a minute on a fast line."
	@$(PYTHON) -m venv --clear $(VENV)
	@# pip brings uv, by the lock's hash; uv brings the rest, side by side, and shows what it fetches. It compiles all of
	@# it, once: a Python process of Spark starts in a third of the time, also where PYTHONDONTWRITEBYTECODE is set.
	@awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements.lock > $(VENV)/uv.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --compile-bytecode --require-hashes requirements.lock
	@rm -f $(VENV)/.built-*
	@touch $@

# The hot path is compiled if there is a C compiler; HEADWAY_COMPILE=0 builds plain Python, and 1 requires a compiler.
BUILT := $(VENV)/.built-$(or $(HEADWAY_COMPILE),auto)
$(BUILT): $(READY) hatch_build.py pyproject.toml $(shell find src/headway/core src/headway/execution src/headway/kafka/binding src/headway/metrics -name '*.py' -o -name '*.c')
	@echo "Building Headway. Compiling its hot path takes less than a minute."
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@rm -f $(VENV)/.built-*
	@$(BIN)/headway --version
	@touch $@

setup: $(BUILT)  ## the environment, from the lock file, and Headway in it [HEADWAY_COMPILE=0 for plain Python]

demo: $(BUILT)  ## real flights by priority through a real Kafka into a Spark pipeline [RECORDS=20000 for a short one]
	$(BIN)/python -m demo $(if $(RECORDS),--records $(RECORDS))

# Where this is set, each process of the tests would compile all of them again.
test test-slow test-interrupts: export PYTHONDONTWRITEBYTECODE =

# Once, in two halves side by side; otherwise each process of the tests would do all of it at the same time.
COMPILED := tests/__pycache__/compiled
$(COMPILED): $(BUILT)
	@$(BIN)/python -m pytest --collect-only -q src/headway tests/unit tests/property >/dev/null & \
	  $(BIN)/python -m pytest --collect-only -q tests/broker tests/contract tests/spark >/dev/null; wait
	@mkdir -p $(@D) && touch $@

test: $(BUILT) $(COMPILED)  ## in minutes: each promise, with real Kafka and real Spark [TESTERS=0 for one after the other]
	$(BIN)/python -m pytest -m "not slow and not interrupts" --numprocesses $(TESTERS) $(ARGS)

test-slow: $(BUILT) $(COMPILED)  ## the rest, in hours: long tests, all variants, more examples [WITHIN=1800 for half an hour of it]
	$(BIN)/python -m pytest -m "(slow or hypothesis) and not interrupts" --hypothesis-profile thorough --numprocesses $(SLOW_TESTERS) \
	  $(if $(WITHIN),--within $(WITHIN)) $(ARGS)

# In plain Python, since an interrupt cannot be sent at an instruction of a compiled module.
# Beside the threads of other tests, tracing each instruction makes CPython 3.11 spin now and then.
test-interrupts:  ## Ctrl-C at chosen instructions, in a process of its own for each file
	@HEADWAY_COMPILE=0 $(MAKE) --no-print-directory setup $(COMPILED)
	@for file in $$(grep -rl "mark.interrupts" tests --include="test_*.py"); do \
	  $(BIN)/python -m pytest -m interrupts $$file $(ARGS) || exit 1; done

test-all: test test-slow test-interrupts  ## every test there is

versions: $(READY)  ## tests on each Python there is, and with the oldest and newest dependencies [ARGS="-s lowest"]
	VIRTUAL_ENV= $(BIN)/uv tool run --python $(BIN)/python nox==2026.10.20 $(ARGS)

release: $(READY)  ## the files of a release in dist/, each one installed and tried [ARGS=--rehearse]
	$(BIN)/python tools/release.py $(ARGS)

docs: $(BUILT)  ## the site with search and a reference, in site/
	$(BIN)/python -m tools.pages.build

lint: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BUILT)  ## every benchmark, quickly; results as JSON in bench-output/
	@mkdir -p bench-output
	@for script in benchmarks/[a-z]*.py; do \
	  $(BIN)/python $$script --quick --json bench-output/$$(basename $$script .py).json || exit 1; done

speed: $(BUILT)  ## CPU a record on each hot path, beside a fixed commit, in turns [ARGS="--paths relay"]
	$(BIN)/python benchmarks/speed.py $(ARGS)

peers: $(BUILT)  ## beside the Java parallel consumer, confluent-kafka and Spark's connector [ARGS="--only table"]
	$(BIN)/python benchmarks/peers.py $(ARGS)

quirks: $(BUILT)  ## which of librdkafka's faults still exist, shown on plain confluent-kafka [ARGS=close_in_a_callback]
	$(BIN)/python -m quirks $(ARGS)

lock: $(READY)  ## resolve the dependencies anew into requirements.lock
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --group demo --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements.lock

clean:  ## remove what the other targets made
	rm -rf $(VENV) bench-output demo-output dist site .site .nox .mypy_cache .ruff_cache .pytest_cache .hypothesis
