# Everything starts from a bare clone: Python 3.11+ and make are enough.
PYTHON ?= python3
BIN := .venv/bin
# Asked for by name and first, so that no package below can pull another build of it.
TORCH ?= torch==2.13.0
# A registry's progress bars and warnings are noise to someone who wants to see the demo.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo pytest test check thorough docs bench lint release-check clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

# What the demo needs, and no more: a stranger wants to see it soon. Python compiles what it
# imports; compiling all that is installed took a core 40 seconds more.
.venv/run: pyproject.toml
	@echo "Setting up .venv (once; a minute or two) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Flockstep needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --no-compile "$(TORCH)"
	@$(PIP) --no-compile -e ".[compare]"
	@touch $@

# What developers need besides.
.venv/ready: .venv/run
	@echo "Adding the developers' tools (once; a minute or two) ..."
	@$(PIP) -e ".[dev]"
	@touch $@

demo: .venv/run  ## the main job: five systems on real processes, then on virtual nodes, one table, a picture and a report (2 to 5 minutes)
	@$(BIN)/flockstep demo

# Three at a time on two cores: many wait for processes that wait for each other. In one go, so that the last lines
# tell of all that was skipped.
pytest: .venv/ready
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "$(ONLY)"

# Types are one core's work for most of a minute: beside the tests.
test: .venv/ready  ## the tests, real processes included
	@$(MAKE) --no-print-directory --jobs 2 lint pytest ONLY="not thorough"

check: .venv/ready  ## the fast part of them
	@$(MAKE) --no-print-directory --jobs 2 lint pytest ONLY="not slow"

thorough: .venv/ready  ## the rest of them: products whole, quick runs of every benchmark; CI runs these, too
	@$(MAKE) --no-print-directory pytest ONLY=thorough

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready  ## the documentation as a site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: .venv/ready  ## every benchmark, quickly
	$(BIN)/python -m benchmarks.simulator --quick
	$(BIN)/python -m benchmarks.overhead --quick
	$(BIN)/python -m benchmarks.slowlink --quick
	$(BIN)/python -m benchmarks.mailbox --quick
	$(BIN)/python -m benchmarks.elastic --quick
	$(BIN)/python -m benchmarks.faults --quick
	$(BIN)/python -m benchmarks.elastic_faults --quick
	$(BIN)/python -m benchmarks.schedules --quick
	$(BIN)/python -m benchmarks.codecs --quick
	$(BIN)/python -m benchmarks.swarm --quick
	$(BIN)/python -m benchmarks.race --quick
	$(BIN)/python -m benchmarks.stacked --quick
	$(BIN)/python -m benchmarks.lockfree --quick
	$(BIN)/python -m benchmarks.lda --quick
	$(BIN)/python -m benchmarks.lda.nodes --quick
	$(BIN)/python -m benchmarks.a2c --quick
	$(BIN)/python -m benchmarks.a2c.nodes --quick
	$(BIN)/python -m benchmarks.a2c.pong --quick
	$(BIN)/python -m benchmarks.a2c.control --quick

release-check: .venv/ready  ## would a release be whole? builds it, compares it with git, uses it from elsewhere
	$(BIN)/python -m tools.release_check

clean:  ## forget the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
