# `make` lists the targets. `make up` needs Rust, and Node.js unless PostgreSQL and anvil are installed.

CARGO ?= cargo
# Arguments of `make up` (ARGS=--once stops after the test transaction), `make chaos` and `make test-upgrade`.
ARGS ?=
# Arguments of `make bench` and `make bench-quick`.
BENCH ?=
# Target of `make fuzz`: abi, answer, payload, request or words.
TARGET ?= answer
# Released binaries support the keys of both cloud services; development builds and `make test` do not.
RELEASE_FEATURES := gapless-worker/aws-kms,gapless-worker/gcp-kms
DATA := .gapless
# The version of this release.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The version of mdBook for `make doc`.
MDBOOK_VERSION := 0.5.4

.DEFAULT_GOAL := help
.PHONY: help up build test test-nodes test-openapi test-ecosystem test-upgrade record-rows chaos lint fmt doc openapi fuzz bench bench-quick bench-build clean-data

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## start a local stack and send a test transaction (ARGS=--once: then stop)
	@$(CARGO) build -p gapless-cli -p gapless-api -p gapless-worker
	@target/debug/gapless up $(ARGS)

build: ## build the binaries into target/release
	$(CARGO) build --release -p gapless-cli -p gapless-api -p gapless-worker --features $(RELEASE_FEATURES)

test: ## run the tests of the core; they start their own PostgreSQL and anvil
	$(CARGO) test --workspace

test-nodes: ## run the core scenarios also on Hardhat and geth (builds geth if Go is installed)
	@CARGO="$(CARGO)" tools/test-nodes

test-openapi: ## lint openapi.yaml, and generate and compile clients with the tools of other projects
	@CARGO="$(CARGO)" tools/test-openapi

test-ecosystem: ## test clients, cloud keys and other nodes; needs Python, Go or Java (CI=true: a missing part fails)
	@CARGO="$(CARGO)" tools/test-ecosystem

record-rows: ## record rows in every state with this version, for the upgrade tests of the next one; once for each release
	@$(CARGO) build -p gapless-tests --bins
	@target/debug/gapless-record-rows --program target/debug/gapless-stack --out tests/rows/$(VERSION)

chaos: ## inject faults for five minutes and check the result (ARGS="--seed 7 --seconds 60"; --help lists the options)
	@$(CARGO) build -p gapless-tests -p gapless-chaos --bins
	@target/debug/gapless-chaos $(ARGS)

test-upgrade: ## roll from the previous release to this version and back under faults (PREVIOUS=<rev>, ARGS as for chaos)
	@CARGO="$(CARGO)" tools/test-upgrade $(ARGS)

lint: ## check formatting, lints, and licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check licenses bans sources; \
	else echo "NOT CHECKED: licences and sources of dependencies; cargo-deny is not installed (cargo install cargo-deny)"; fi

fmt: ## format the sources
	$(CARGO) fmt --all

openapi: ## write openapi.yaml from the API's code
	@$(CARGO) run -q -p gapless-api -- --print-openapi > openapi.yaml.new && mv openapi.yaml.new openapi.yaml

fuzz: ## run one fuzz target until Ctrl-C (TARGET=answer; needs cargo-fuzz and a nightly compiler)
	cd fuzz && cargo +nightly fuzz run $(TARGET)

doc: ## build the documentation of the code into target/doc, and that of docs/ into target/book
	$(CARGO) doc --no-deps --workspace
	@if mdbook --version >/dev/null 2>&1; then mdbook build docs; \
	else echo "NOT BUILT: target/book; mdBook is not installed (cargo install mdbook --version $(MDBOOK_VERSION) --locked)"; fi

bench-build: ## build the benchmarks and the binaries in release mode
	$(CARGO) build --release -p gapless-cli -p gapless-api -p gapless-worker -p gapless-bench --features $(RELEASE_FEATURES)

bench: bench-build ## run all benchmarks, about ten minutes (BENCH="--only engine"; --help lists the options)
	@target/release/gapless-bench $(BENCH)

bench-quick: bench-build ## run small benchmarks, under two minutes; the last line is a summary
	@target/release/gapless-bench --quick $(BENCH)

clean-data: ## delete database, chain and keys of `make up`
	@if [ -f $(DATA)/postgres.path ]; then rm -rf -- "$$(cat $(DATA)/postgres.path)"; fi
	@rm -rf -- $(DATA)
