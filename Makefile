# What a person who has just cloned this types. `make` alone lists it.

CARGO ?= cargo
# Where `make install` puts the binary; empty: where cargo puts binaries.
PREFIX ?=
# How `make static` and `make image` build: release to ship, dev for tests.
PROFILE ?= release
# What `make image` calls the image.
IMAGE ?= stokehold.dev/stoke:$(shell sed -n 's/^appVersion: //p' charts/stokehold/Chart.yaml)

# Said even where it is the host's own, so that build scripts and macros, which cannot be static, are built without the flag.
target_triple = $(shell rustc -vV | sed -n 's/^host: //p')
static_flags = RUSTFLAGS="-C target-feature=+crt-static"
static_dir = $(or $(CARGO_TARGET_DIR),target)/$(target_triple)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

.DEFAULT_GOAL := help
.PHONY: help demo test test-on-testbed tests-here tests-on-clusters build static image install lint bench bench-replay bench-memory bench-data bench-kube kube-up kube-down kube-image kube-check

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build, start an engine, train an example with live progress, stop
	@scripts/demo.sh

test: ## set up what tests need, check the style, run all tests
	@scripts/setup.sh build torch mpi kube
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory kube-check
	tests/kube/with.sh $(MAKE) --no-print-directory test-on-testbed PROFILE=dev

# With whatever testbed there is: an operator inside of it needs the image of this tree. Then tests are built as what is in that image
# is, and no dependency is built twice.
has_nodes = $(filter full,$(STOKE_KUBE_MODE))
test_all = $(if $(has_nodes),$(static_flags)) $(CARGO) test --workspace --locked $(if $(has_nodes),--target $(target_triple))
test-on-testbed: $(if $(has_nodes),kube-image)
	$(test_all) --no-run
	$(test_all) --no-run --test kube
	@$(MAKE) --no-print-directory --jobs 2 tests-here tests-on-clusters

tests-here:
	$(test_all)

# Mostly they wait for a cluster, so they run beside the others.
tests-on-clusters:
	$(test_all) --test kube

build: ## the binary, in target/release/stoke
	$(CARGO) build --release --locked --package stoke-cli --bin stoke

static: ## the binary without shared libraries, for images
	$(static_flags) $(CARGO) build --locked --target $(target_triple) --profile $(PROFILE) --package stoke-cli --bin stoke
	@echo $(static_dir)/stoke

image: static ## an archive for `docker load` or `ctr images import`, in target/image.tar
	@scripts/image.sh $(static_dir)/stoke $(IMAGE) $(or $(CARGO_TARGET_DIR),target)/image.tar

install: ## the binary, for you (PREFIX=/usr/local: for all)
	$(CARGO) install --locked --path crates/cli $(if $(PREFIX),--root $(PREFIX))
	@ln -sf stoke "$(or $(PREFIX),$${CARGO_INSTALL_ROOT:-$${CARGO_HOME:-$$HOME/.cargo}})/bin/kubectl-stoke" # `kubectl stoke ...`

lint: ## formatting and clippy, as the tests demand them
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked
	$(CARGO) clippy --workspace --test kube --locked

bench: ## one JSON line per figure
	@$(CARGO) bench --locked --quiet --package stoke-cli --bench engine --bench agent

bench-replay: ## the public placement traces against every policy; one JSON line per trace and policy
	@$(CARGO) bench --locked --quiet --package stoke-sched --bench replay

bench-memory: ## leaks found and jobs saved, next to the usual rules; one JSON line per figure
	@$(CARGO) bench --locked --quiet --package stoke-memory

bench-data: ## staging from a real S3 server next to a plain parallel copy; one JSON line per figure
	@$(CARGO) bench --locked --quiet --package stoke-data --bench staging

bench-kube: ## the operator at scale, on a control plane of its own, next to a bare client; one JSON line per figure
	@$(CARGO) bench --locked --quiet --package stoke-cli --bench scale

kube-up: ## a real Kubernetes on this machine, for tests; with nodes that run pods if you are root
	@tests/kube/up.sh --any

kube-image: static ## this tree's binary as an image on its nodes (PROFILE=dev builds faster)
	@tests/kube/image.sh $(static_dir)/stoke

kube-down: ## all of it gone
	@tests/kube/down.sh

kube-check: ## that it leaves nothing, in good order and after crashes; skipped where it cannot be had
	@tests/kube/leaves-nothing.sh || [ $$? = 3 ]
