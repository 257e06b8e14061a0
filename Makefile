# `make` lists what there is. `make up` needs Rust, and Node.js unless PostgreSQL and anvil are installed.

CARGO ?= cargo
# Passed on by `make up` (ARGS=--once ends after the first confirmation) and by `make chaos`.
ARGS ?=
# Passed on by `make bench` and `make bench-quick`.
BENCH ?=
DATA := .gapless

.DEFAULT_GOAL := help
.PHONY: help up build test test-nodes chaos lint bench bench-quick bench-build clean-data

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## start everything on this machine and send a first transaction (ARGS=--once: then stop)
	@$(CARGO) build -p gapless-cli -p gapless-api -p gapless-worker
	@target/debug/gapless up $(ARGS)

build: ## build the binaries into target/release
	$(CARGO) build --release -p gapless-cli -p gapless-api -p gapless-worker

test: ## run all tests, on a real PostgreSQL and a real anvil that they start themselves
	$(CARGO) test --workspace

test-nodes: ## run the core scenarios on Hardhat and geth as well (builds geth if Go is installed)
	@CARGO="$(CARGO)" tools/test-nodes

chaos: ## break everything for five minutes, and judge what is left (ARGS="--seed 7 --seconds 60", --help lists the options)
	@$(CARGO) build -p gapless-tests --bins
	@target/debug/gapless-chaos $(ARGS)

lint: ## check format, lints, and licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features gapless-tests/every-node -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check licenses bans sources; \
	else echo "NOT CHECKED: licences and sources of dependencies; cargo-deny is not installed (cargo install cargo-deny)"; fi

bench-build: ## build the benchmarks and what they measure, optimised
	$(CARGO) build --release -p gapless-cli -p gapless-api -p gapless-worker -p gapless-bench

bench: bench-build ## run all benchmarks, about ten minutes (BENCH="--only engine", --help lists the options)
	@target/release/gapless-bench $(BENCH)

bench-quick: bench-build ## the same with small sizes, under two minutes; the last line sums it up
	@target/release/gapless-bench --quick $(BENCH)

clean-data: ## remove database, chain and keys of `make up`
	@if [ -f $(DATA)/postgres.path ]; then rm -rf -- "$$(cat $(DATA)/postgres.path)"; fi
	@rm -rf -- $(DATA)
