# Everything is made in .venv and build/; built peers are kept outside of the tree (tools/peers.py).
PREFIX ?= /usr/local
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
READY := .venv/ready
NATIVE := build/native.stamp
export SHIM_PEERS_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/containerd-shim-trio/peers

.DEFAULT_GOAL := help

##@ Use
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ready ## Run a container (root) and show output, exit status, pid, shim memory and the time of each step
	@sh tools/prepare.sh run
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/shimctl run --timings \
	  sh -c 'echo "hello from $$(uname -sm), as pid $$$$ of a container of my own:"; ps'

install: ready ## Install under PREFIX (/usr/local): programs in bin/, lib/containerd-shim-trio
	$(PYTHON) -m tools.install install --prefix $(PREFIX)

uninstall: ready ## Take everything that install put under PREFIX away again
	$(PYTHON) -m tools.install uninstall --prefix $(PREFIX)

##@ Build
# The package is installed editable, so that .venv/bin has the programs; PIP_CONSTRAINT holds for the build tools too.
$(READY): pyproject.toml constraints.txt
	@sh tools/prepare.sh build
	test -x $(PYTHON) || python3 -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(NATIVE): $(READY) $(wildcard native/*.c native/*.h native/*.py)
	$(PYTHON) native/build.py
	$(PYTHON) native/programs.py
	@mkdir -p $(@D) && touch $@

.PHONY: ready
ready: $(READY) $(NATIVE)

native: ready ## Build the native module in place

proto: ready ## Generate the message modules from shim/wire/proto/*.proto
	$(PYTHON) tools/generate_proto.py

clean: ## Remove what was built, but not .venv and not the peers
	rm -rf build dist *.egg-info shim/_native.*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find shim native tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Check
# Each checker is a target, so that `make -k check` shows what all of them say.
CHECKS := check-lint check-format check-types check-imports check-generated check-tree
.PHONY: $(CHECKS)
check: $(CHECKS) ## Lint, format, types, import contracts, generated files, module sizes, change fragments
check-lint: ready
	.venv/bin/ruff check
check-format: ready
	.venv/bin/ruff format --check
check-types: ready
	.venv/bin/mypy --strict
check-imports: ready
	.venv/bin/lint-imports --no-logo
check-generated: ready
	$(PYTHON) tools/generate_proto.py --check
	$(PYTHON) -m tools.draw_lifecycle --check
check-tree: ready
	$(PYTHON) tools/check_tree.py

# The suite drives the installed program, launcher and all, not the one in .venv; SHIM_UNDER_TEST names another.
INSTALLED := $(CURDIR)/build/installed
.PHONY: installed
installed: ready
	$(PYTHON) -m tools.install install --prefix $(INSTALLED)

test: export SHIM_UNDER_TEST ?= $(INSTALLED)/bin/containerd-shim-trio-v2
test: ready peers installed ## Run all tests; without root the system suite is skipped
	$(PYTEST)

test-root: export SHIM_UNDER_TEST ?= $(INSTALLED)/bin/containerd-shim-trio-v2
test-root: ready peers installed ## Run the system suite (root; real runc, containerd and crictl)
	$(PYTEST) tests/system

test-peer: ready peers ## Run the system suite against the Go shims of containerd 2.4 and 1.6 (root)
	SHIM_UNDER_TEST=go-2.4 $(PYTEST) tests/system
	SHIM_UNDER_TEST=go-1.6 $(PYTEST) tests/system

sanitize: ready ## Run the native module's tests with the address and undefined-behaviour sanitizers
	$(PYTHON) tools/sanitize.py

# As many rounds as the machine is quiet enough for; a peer that is absent is a column that says so.
PEERS ?= go-2.4 go-1.6
ROUNDS ?= 10
STUCK_ROUNDS ?= 3
bench: ready peers installed ## Measure ours and PEERS in turn (root): medians, ratios, and what a stuck Delete costs
	$(PYTHON) -m tools.bench --shim $(INSTALLED)/bin/containerd-shim-trio-v2 --peers "$(PEERS)" \
	  --rounds $(ROUNDS) --stuck-rounds $(STUCK_ROUNDS) --json build/bench.json

peers: $(READY) ## Install and build the programs of others that the tests use; says what is absent and why
	@sh tools/prepare.sh run test
	$(PYTHON) tools/peers.py --build

.PHONY: help run install uninstall native proto clean check test test-root test-peer sanitize bench peers
