# What a developer does here, one command each; `make` alone prints the list.

# The first of these that can make a working virtual environment is used; PYTHON=... puts another one first.
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
# The pinned wheels in requirements/ exist for CPython 3.11 up to, but without, this minor version.
TOO_NEW := 15

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input --quiet
INSTALLED := $(VENV)/.installed
# Four processes on two cores: while some wait for a server or a clock, others work.
WORKERS := 4
# Tests start the program hundreds of times: it is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo lint test postgres pages docker-steps deploy-steps wheel-steps plugin-steps wheel release coverage mutants golden bench peers proof proof-sample clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## make .venv with everything in it; does nothing when it is up to date

# The one way to install: a virtual environment, wheels only, each checked against its hash, then this
# project itself without looking anything up. The lock is complete, so pip looks up no dependency: it
# would take the newest release of one that it knows under an extra, and no hash fits that. Whether
# anything is missing is checked afterwards. A .venv that works is kept and brought up to date.
$(INSTALLED): pyproject.toml requirements/test.txt
	@works() { "$$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $(TOO_NEW)))' 2>&1; }; \
	piped() { works $(PY) && $(PY) -m pip --version; }; \
	if ! piped >/dev/null 2>&1; then \
	  for python in $(PYTHONS); do \
	    works $$python >/dev/null || continue; \
	    $$python -m venv --clear $(VENV) >/dev/null 2>&1 && piped >/dev/null 2>&1 && break; \
	    echo "$$python cannot make a virtual environment with pip, trying the next" >&2; \
	  done; \
	  piped >/dev/null 2>&1 || { \
	    echo "Dragoman needs CPython 3.11 or newer (below 3.$(TOO_NEW)) with venv and pip. Install one of them, on" >&2; \
	    echo "Debian or Ubuntu: apt install python3 python3-venv; on macOS: brew install python@3.13." >&2; \
	    echo "Then run make again, with PYTHON=/path/to/python when it is not on the PATH." >&2; \
	    exit 1; }; \
	fi
	@echo "installing into $(VENV) with $$($(PY) --version)"
	@$(PIP) install --require-hashes --no-deps --only-binary :all: -r requirements/test.txt
	@$(PIP) install --no-index --no-deps --no-build-isolation --editable .
	@$(PIP) check
	@touch $@

demo: $(INSTALLED) ## run the proxy with scripted backends until Ctrl-C; PORT=... chooses the port
	@exec $(VENV)/bin/dragoman demo $(if $(PORT),--port $(PORT))

lint: $(INSTALLED) ## check style, types and the import contracts; print lines and budgets
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --check --quiet || { \
	  echo "some files are not formatted: run $(VENV)/bin/ruff format"; exit 1; }
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) -m tests.budgets

test: lint ## lint, then the tests that need no server, Node, browser or network; ALL=1: all of them
	@$(PY) -m pytest -q -n $(WORKERS) --dist worksteal $(if $(ALL),,-p tests.drawing) $(ARGS)

postgres: $(INSTALLED) ## run what a journal in PostgreSQL must do, on Debian's server in a folder; ALL=1: all of it
	@$(PY) -m pytest -q -n $(WORKERS) --dist worksteal -p tests.on_postgres $(ARGS)

pages: $(INSTALLED) ## build wheels, follow pages of the documentation, start programs in terminals
	@$(PY) -m pytest -q -n $(WORKERS) --dist worksteal -m "pages and not wheel and not plugin" $(ARGS)

docker-steps: $(INSTALLED) ## run the steps of the Dockerfile in a scratch folder (uses the package index)
	@$(PY) -m pytest -q -m docker tests/test_docker.py

wheel-steps: $(INSTALLED) ## build the wheel, install it beside others and use it (uses the package index)
	@$(PY) -m pytest -q -m wheel tests/test_wheel.py

plugin-steps: $(INSTALLED) ## follow docs/regression-tests.md from built wheels (uses the package index)
	@$(PY) -m pytest -q -m plugin tests/test_plugin.py

wheel: $(INSTALLED) ## build sdists and wheels of what is here into dist/: Dragoman, and the plugin for pytest
	@$(PY) -m tests.release --unreleased

release: $(INSTALLED) ## build sdists and wheels of a release into dist/; it uploads nothing
	@$(PY) -m tests.release

deploy-steps: $(INSTALLED) ## follow docs/deploy.md (uses the package index, caddy, nginx, pgbouncer, postgresql, systemd-analyze)
	@$(PY) -m pytest -q -m deploy tests/test_deploy.py tests/test_proxies.py tests/cluster

coverage: $(INSTALLED) ## the tests again, with the lines and branches that none of them reaches
	@$(PY) -m pytest -q -n $(WORKERS) --dist worksteal --cov --cov-report=term $(ARGS)

mutants: $(INSTALLED) ## change the code line by line and see that tests notice; again until it is through
	@$(PY) -m tests.mutants $(ARGS)

golden: $(INSTALLED) ## write the golden files anew; read the diff before you commit it
	@$(PY) -m tests.golden --write

bench: $(INSTALLED) ## measure; ARGS=--quick for a short run
	@$(PY) -m bench $(ARGS)

peers: $(INSTALLED) ## run the suites against real peers, which are downloaded (uses Node); ALL=1: all combinations
	@sh tests/peers/run.sh

proof: $(INSTALLED) ## kill and cut the proxy thousands of times, with figures; goes on where it stopped
	@$(PY) -m tests.proof $(ARGS)

proof-sample: $(INSTALLED) ## a two-hundredth of the proof, from nothing
	@rm -rf .cache/proof-sample.*
	@$(PY) -m tests.proof --fraction 0.005 --soak-every 6 --results .cache/proof-sample.jsonl

clean: ## remove what the other commands made
	@rm -rf $(VENV) .cache build dist .coverage htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find adapters dragoman proxy bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
