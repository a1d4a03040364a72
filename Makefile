# What a person who has just cloned this types. `make` alone lists it.

CARGO ?= cargo
# Where `make install` puts the binary; empty: where cargo puts binaries.
PREFIX ?=

.DEFAULT_GOAL := help
.PHONY: help demo test build install lint bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build, start an engine, train an example with live progress, stop
	@scripts/demo.sh

test: ## set up what tests need, check the style, run all tests
	@scripts/setup.sh build torch mpi
	@$(MAKE) --no-print-directory lint
	$(CARGO) test --workspace --locked

build: ## the binary, in target/release/stoke
	$(CARGO) build --release --locked --package stoke-cli --bin stoke

install: ## the binary, for you (PREFIX=/usr/local: for all)
	$(CARGO) install --locked --path crates/cli $(if $(PREFIX),--root $(PREFIX))

lint: ## formatting and clippy, as the tests demand them
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked

bench: ## one JSON line per figure
	@$(CARGO) bench --locked --quiet --package stoke-cli --bench engine
