# make train   a real run on the embedded data set        make test    all tests
# make check   format, lint, types                        make bench   the table in benchmarks/README.md
# make docs    the site, into .site                       make conformance   the long tests
# make peers   environments of the programs that `make bench` compares with (several GB)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Tests at a time: one more than the two cores they are made for, since many wait for processes that they started.
JOBS ?= 3
export CONVEYOR_PEERS ?= $(CURDIR)/.peers
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not conformance"

.PHONY: train install test check format bench peers conformance docs lock clean

train: $(VENV)/.core
	$(BIN)/conveyor train

install: $(VENV)/.all

# Processes of their own: the inference libraries can crash a process long after they were used (seen as a segmentation
# fault when their objects are collected), and the launch tests start and kill many workers.
test: $(VENV)/.all $(CONVEYOR_PEERS)/triton/.all $(CONVEYOR_PEERS)/store/.all
	$(PYTEST) --ignore tests/infer --ignore tests/launch $(ARGS)
	$(PYTEST) tests/infer
	$(PYTEST) tests/launch

check: $(VENV)/.all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.all
	$(BIN)/conveyor bench all

# Each in an environment of its own: they ask for versions that clash. `make bench` leaves out what is not there.
peers: $(patsubst requirements/peers/%.txt,$(CONVEYOR_PEERS)/%/.all,$(wildcard requirements/peers/*.txt))

$(CONVEYOR_PEERS)/%/.all: requirements/peers/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Ray, submitit and mpirun come from an environment of their own, behind our packages and behind the system's mpirun.
conformance: $(VENV)/.all $(CONVEYOR_PEERS)/store/.all $(CONVEYOR_PEERS)/cluster/.all $(CONVEYOR_PEERS)/engines/.all
	PATH="$$PATH:$(CONVEYOR_PEERS)/engines/bin" PYTHONPATH=$(CURDIR)/tests/engines_path OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m conformance -n $(JOBS) --dist loadgroup $(ARGS)

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet
	@echo ".site/index.html"

lock: $(VENV)/.docs
	$(BIN)/python scripts/lock.py
	$(BIN)/python scripts/licences.py

clean:
	rm -rf $(VENV) .peers .site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What `make train` needs; the full environment holds it too.
KERNELS := hatch_build.py $(wildcard src/conveyor/*/native/*.[ch] src/conveyor/*/native/compile.py)

$(VENV)/.core: requirements/core.txt requirements/torch.txt pyproject.toml $(KERNELS) | $(BIN)/python
	$(PIP) --require-hashes -r requirements/core.txt
	$(PIP) --no-deps -r requirements/torch.txt
	$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.all: requirements/all.txt $(VENV)/.core
	$(PIP) --require-hashes -r requirements/all.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.all
	$(PIP) --require-hashes -r requirements/docs.txt
	@touch $@
