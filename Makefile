# Everything a person types; .ci/run calls the same targets. PYTHON=... chooses the interpreter of the venv.
PYTHON ?= python3
VENV ?= .venv
NODE ?= .node
ARGS ?=
# Processes that share out the test files.
JOBS ?= auto
BIN := $(VENV)/bin
CONFORMANCE := 0.2.0-alpha.12
# Servers as they are published, for the demo, the tests and the conformance suite.
PUBLISHED := .published
PYPI_SERVERS := 2026.10.19
NPM_SERVERS := 2026.8.31

.PHONY: help demo test lint check docs conformance compatibility bench fuzz published published-time clean
.DELETE_ON_ERROR:

help:
	@echo "make demo         run the gateway in front of three MCP servers (ARGS='--port 8081')"
	@echo "make test         run the tests, in as many processes as there are cores (JOBS=0 ARGS='tests/unit -k sse')"
	@echo "make lint         formatting, lint, types"
	@echo "make check        lint and test"
	@echo "make conformance  run the official conformance suite against the gateway"
	@echo "make published    install the published servers that the tests run, from PyPI and npm"
	@echo "make compatibility  try every client with every server, and write docs/compatibility.md"
	@echo "make docs         write the pages and manifests that follow from other files"
	@echo "make bench        measure the gateway beside a bare handler and a bare forwarder"
	@echo "make fuzz         feed the parsers what nobody would send (ARGS='--runs 100000 --seed 7')"
	@echo "make clean        remove the venv and all that was built"

# Where a registry cannot be reached, the demo has a server less and the tests of published ones fail.
demo: $(VENV)/.demo
	@$(MAKE) --no-print-directory published-time || echo "mcp-server-time could not be installed from PyPI" >&2
	@exec $(BIN)/python -m deploy.demo $(ARGS)

test: $(VENV)/.dev
	@$(MAKE) --no-print-directory published || echo "some published servers are missing; their tests will fail" >&2
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

conformance: $(VENV)/.dev $(NODE)/.conformance-$(CONFORMANCE) $(PUBLISHED)/.npm-$(NPM_SERVERS)
	$(BIN)/python -m tests.conformance.run --node $(NODE) $(ARGS)

compatibility: $(VENV)/.dev
	$(BIN)/python -m tests.matrix.page

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate

bench: $(VENV)/.dev
	$(BIN)/python -m bench.run $(ARGS)

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz.run $(ARGS)

published: published-time $(PUBLISHED)/.git-$(PYPI_SERVERS) $(PUBLISHED)/.npm-$(NPM_SERVERS)
	@:

published-time: $(PUBLISHED)/.time-$(PYPI_SERVERS)
	@:

clean:
	rm -rf $(VENV) $(NODE) $(PUBLISHED) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz
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

$(VENV)/.fuzz: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $(VENV)/.demo $(VENV)/.dev $@

# The servers have a venv of their own: they choose their SDK themselves.
$(PUBLISHED)/.time-$(PYPI_SERVERS) $(PUBLISHED)/.git-$(PYPI_SERVERS): $(PUBLISHED)/.%-$(PYPI_SERVERS): | $(VENV)/.python
	@echo "Installing mcp-server-$* into $(PUBLISHED)"
	@test -x $(PUBLISHED)/venv/bin/python || $(PYTHON) -m venv $(PUBLISHED)/venv
	@$(PUBLISHED)/venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 10 \
	  mcp-server-$*==$(PYPI_SERVERS)
	@touch $@

$(PUBLISHED)/.npm-$(NPM_SERVERS):
	@command -v npm >/dev/null || { echo "npm is needed for the published servers" >&2; exit 1; }
	@mkdir -p $(PUBLISHED)
	npm install --prefix $(PUBLISHED) --no-package-lock --no-audit --no-fund --loglevel=error \
	  @modelcontextprotocol/server-everything@$(NPM_SERVERS) \
	  @modelcontextprotocol/server-filesystem@$(NPM_SERVERS) \
	  $$(node -e 'const [major] = process.versions.node.split("."); \
	    if (major < 20) console.log(`node-$${process.platform}-$${process.arch}@24`)')
	@touch $@

# The suite needs Node 22 or newer. Where Node is older, npm brings a newer one along for it alone.
$(NODE)/.conformance-$(CONFORMANCE):
	@command -v npm >/dev/null || { echo "npm is needed for the conformance suite" >&2; exit 1; }
	@mkdir -p $(NODE)
	npm install --prefix $(NODE) --no-package-lock --no-audit --no-fund --loglevel=error \
	  @modelcontextprotocol/conformance@$(CONFORMANCE) \
	  $$(node -e 'const [major] = process.versions.node.split("."); \
	    if (major < 22) console.log(`node-$${process.platform}-$${process.arch}@24`)')
	@touch $@
