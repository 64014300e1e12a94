# gridshift: every target sets up what it needs on a Debian or Ubuntu that has Python >= 3.11 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo up test check bench chaos clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## the virtual environment .venv with everything

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "gridshift needs Python >= 3.11 as '$(PYTHON)'; install one, or say which: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv is not complete here; Debian and Ubuntu have it in python3-venv" >&2; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing python3-venv ..." >&2; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; \
	  else echo "run: sudo apt-get install python3-venv" >&2; exit 1; fi; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing gridshift and what it needs into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@
	@echo "done; '. $(VENV)/bin/activate' puts gridshift on your path"

demo: install ## two Ray clusters on this machine, a dozen jobs, one scarcity event, a table
	@$(BIN)/gridshift demo $(ARGS)

up: install ## control plane, local Ray and console
	@$(BIN)/gridshift up $(ARGS)

# A private PostgreSQL is used where Debian's postgresql is installed; without it those tests say so and skip, except in CI.
test: install ## all tests; ARGS="-k word" or ARGS="-m 'not real'" for some
	@if [ -z "$$GRIDSHIFT_TEST_POSTGRES" ] && [ -f tests/postgres.sh ]; then \
	  if url=$$(bash tests/postgres.sh start); then \
	    trap 'bash tests/postgres.sh stop' EXIT; trap 'exit 130' INT TERM; \
	    GRIDSHIFT_TEST_POSTGRES=$$url; export GRIDSHIFT_TEST_POSTGRES; \
	  elif [ "$$CI" = true ]; then echo "CI promises PostgreSQL, and it did not start" >&2; exit 1; \
	  else echo "no PostgreSQL here (apt-get install postgresql): its tests will skip" >&2; fi; \
	fi; \
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: install ## ruff, formatting, mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: install ## all benchmarks, and build/benchmarks.md; ARGS=--quick for a short run
	@$(BIN)/python -m tests.benchmarks $(ARGS)

chaos: install ## kills the control plane 50 times under load, and agents with it 200 times; finds no lost job and no broken cap
	@GRIDSHIFT_CHAOS_ROUNDS=50 $(BIN)/python -m pytest tests/real/test_crash.py $(ARGS)
	@GRIDSHIFT_CHAOS_ROUNDS=200 $(BIN)/python -m pytest tests/real/test_power.py -k kills $(ARGS)

clean: ## removes what make and the tools wrote, not your data
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
