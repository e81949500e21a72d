# Everything a person types; .ci/run calls the same targets. PYTHON=... chooses the interpreter of the venv.
PYTHON ?= python3
VENV ?= .venv
NODE ?= .node
ARGS ?=
BIN := $(VENV)/bin
CONFORMANCE := 0.2.0-alpha.12

.PHONY: help demo test lint check conformance bench clean
.DELETE_ON_ERROR:

help:
	@echo "make demo         run the gateway in front of two MCP servers (ARGS='--port 8081')"
	@echo "make test         run the tests (ARGS='tests/unit -k sse')"
	@echo "make lint         formatting, lint, types"
	@echo "make check        lint and test"
	@echo "make conformance  run the official conformance suite against the gateway"
	@echo "make bench        measure the gateway beside a bare handler and a bare forwarder"
	@echo "make clean        remove the venv and all that was built"

demo: $(VENV)/.demo
	@exec $(BIN)/python -m deploy.demo $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

conformance: $(VENV)/.dev $(NODE)/.conformance-$(CONFORMANCE)
	$(BIN)/python -m tests.conformance.run --node $(NODE) $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/python -m bench.run $(ARGS)

clean:
	rm -rf $(VENV) $(NODE) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make an up-to-date venv cost nothing; a changed pyproject.toml installs again.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Installing into $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "The module venv is needed (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(VENV)/.demo $@

# The suite needs Node 22 or newer. Where Node is older, npm brings a newer one along for it alone.
$(NODE)/.conformance-$(CONFORMANCE):
	@command -v npm >/dev/null || { echo "npm is needed for the conformance suite" >&2; exit 1; }
	@mkdir -p $(NODE)
	npm install --prefix $(NODE) --no-package-lock --no-audit --no-fund --loglevel=error \
	  @modelcontextprotocol/conformance@$(CONFORMANCE) \
	  $$(node -e 'const [major] = process.versions.node.split("."); \
	    if (major < 22) console.log(`node-$${process.platform}-$${process.arch}@24`)')
	@touch $@
