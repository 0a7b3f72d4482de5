# `make` alone lists the targets. CI calls `make test` and nothing else.

CARGO  ?= cargo
# Kernel programs are loaded as root; compiling never needs it.
SUDO   := $(if $(filter 0,$(shell id -u)),,sudo)
TARGET := $(or $(CARGO_TARGET_DIR),target)
OBI    := $(TARGET)/release/obi
# Test programs run as root, cargo itself does not.
HOST   := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
AS_ROOT := $(if $(SUDO),CARGO_TARGET_$(HOST)_RUNNER="sudo -E")
# Extra arguments for `make demo` and `make run`, for example ARGS="--rate 100".
ARGS   ?=
# Seconds per fuzz target.
SECONDS_EACH ?= 60

.PHONY: check reference help demo run build test bench fuzz fmt lint \
        bench-hooks bench-instructions soak check-profiles chart dependencies check-fmt check-dependencies unit integration fuzz-smoke kernel-smoke test-kernels test-arm64 test-causality test-dashboards test-kubernetes test-languages test-rustls test-page test-packages test-wide packages packages-arm64 changelog
.DEFAULT_GOAL := help

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: build ## A small workload of our own and the agent that watches it; prints where to look
	$(SUDO) $(OBI) demo $(ARGS)

run: build ## The agent, watching every process on this machine
	$(SUDO) $(OBI) run $(ARGS)

build: ## The release binary, after installing what the build lacks
	script/install-dependencies build
	$(CARGO) build --release --package obi
	@echo "built $(OBI)"

test: dependencies check-fmt lint check-dependencies unit integration kernel-smoke ## Everything that must hold; CI runs this

dependencies:
	script/install-dependencies test

check: ## Format, lints and unit tests of what changed (BASE=COMMIT: of every commit since it); about a minute
	script/check $(BASE)

check-fmt:
	$(CARGO) fmt --all --check

lint: ## Clippy over everything, warnings are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings

check-dependencies:
	script/check-dependencies

reference: ## docs/configuration.md, docs/metrics.md, dashboards/ and the chart's schema, from the configuration and the table of metrics
	UPDATE_REFERENCE=1 $(CARGO) test --workspace --test documents

# Always `--workspace`: another selection means other features, and everything is compiled again.
unit:
	$(CARGO) test --workspace --lib --bins --test documents
	$(CARGO) test --workspace --doc

# The agent and all programs of the tests are built with them: `cargo build` would compile everything again, since
# without tests the dependencies have other features.
integration:
	$(AS_ROOT) CARGO=$(CARGO) script/test-integration
	$(CARGO) test --package obi-ebpf-host --features portable --test '*'

# Path of the integration tests' binary, which runs inside other kernels; all programs are built with it.
TESTS = $$($(CARGO) test --workspace --test '*' --no-run --message-format=json-render-diagnostics | \
	jq -r 'select(.executable and .target.name == "integration" and .profile.test) | .executable')

check-profiles: ## OpenTelemetry's own checker over our profiles; PROFCHECK=PATH, or built where its Go module can be had
	$(CARGO) run --package obi --example official_checker

kernel-smoke:
	tests=$(TESTS) && [ -n "$$tests" ] && $(SUDO) $(TARGET)/debug/kernels smoke --tests "$$tests"

test-kernels: dependencies ## Every hook set on Debian's kernels from 5.10 to the newest, under QEMU (takes two hours)
	tests=$(TESTS) && [ -n "$$tests" ] && $(SUDO) $(TARGET)/debug/kernels matrix --tests "$$tests" $(ARGS)

test-arm64: dependencies ## Every hook set and Go's TLS on an emulated arm64 with Debian's 6.12 (needs root; an hour and a half the first time)
	$(SUDO) script/test-arm64 $(ARGS)

test-wide: ## More integration tests of the kinds that `make test` has one of each of (needs root; three quarters of an hour)
	$(AS_ROOT) $(CARGO) test --workspace --test integration -- ::wide::
	OBI_TEST_ATTACHMENTS=1000 OBI_TEST_SECONDS=60 OBI_TEST_EVERY_ADDRESS=1 \
		$(AS_ROOT) $(CARGO) test --workspace --test library -- come_and_go every_rule

test-causality: ## Which request made which call, 3,000 requests for each shape and number of clients
	$(CARGO) build --workspace --bins
	OBI_CAUSALITY_REQUESTS=3000 $(AS_ROOT) $(CARGO) test --package integration --test integration causality -- --nocapture

test-rustls: dependencies ## rustls with both libraries of ciphers, two compilers, LTO and both ways to write names (needs root; half an hour the first time)
	$(AS_ROOT) script/test-rustls

test-languages: ## Functions in profiles, with every version of Python (3.8 and newer, pyenv's too), Java and Node on this machine
	$(CARGO) build --workspace --bins
	OBI_TEST_LANGUAGES=all $(AS_ROOT) $(CARGO) test --package integration --test integration -- profile::python profile::java profile::node --nocapture

changelog: ## What the next release would say; VERSION=0.2.0 writes it into CHANGELOG.md
	@script/changelog $(VERSION)

packages: build ## .deb, .rpm and a tarball of the release binary, with manual pages and completions, in target/packages
	script/build-packages

packages-arm64: dependencies ## The same for arm64, of a static binary, on any machine
	script/build-static aarch64
	PROCESSOR=aarch64 script/build-packages

test-packages: dependencies packages ## The packages under a real systemd, in a virtual machine of Debian 12 (needs root and ten minutes)
	script/test-packages

test-dashboards: ## The structure of dashboards/*.json by Grafana's own types (takes two packages from npm)
	script/check-dashboards

test-page: build ## Every screen of the page: valid HTML, and axe-core in a real browser (needs chromium; takes three packages from npm)
	$(SUDO) env OBI=$(OBI) script/test-page

# `make test` runs every target over inputs made at random (obi/tests/fuzz_targets.rs); compiling them with sanitizers
# takes a quarter of an hour.
fuzz-smoke: ## Every fuzz target for five seconds, led by coverage and with sanitizers
	script/install-dependencies fuzz
	script/fuzz 5

fuzz: ## Every fuzz target for SECONDS_EACH seconds
	script/install-dependencies fuzz
	script/fuzz $(SECONDS_EACH)

bench: build ## Benchmarks; prints one table
	$(CARGO) build --release --workspace --bins
	$(CARGO) bench --package obi --package slo
	$(SUDO) $(TARGET)/release/bench

soak: build ## An hour of small load: does memory, do kernel maps or descriptors grow? (ARGS="--minutes 10 --warm-up 3" for a trial)
	$(CARGO) build --release --workspace --bins
	$(SUDO) $(TARGET)/release/soak $(ARGS)

bench-instructions: ## What an exchange costs in instructions, by program and hook set, on an emulated 6.12 that counts them
	$(CARGO) build --release --workspace --bins
	$(SUDO) $(TARGET)/release/kernels run 6.12 --instructions --limit 3600 -- \
		$(abspath $(TARGET))/release/bench --seconds 3 --only instructions

# On a kernel that has all of them; what is emulated is slow, so only the ratios between sets mean anything.
bench-hooks: ## Costs of the hook sets beside each other, on Debian's 6.12 under QEMU
	$(CARGO) build --release --workspace --bins
	$(SUDO) $(TARGET)/release/kernels run 6.12 --limit 3600 -- $(abspath $(TARGET))/release/bench --pairs 3 --only hooks

image: ## An OCI image without a base, static, for this processor: target/image/obi-VERSION.tar
	script/build-image $$(uname -m)

test-kubernetes: dependencies ## Names of pods against a real API server: churn, outage, ten thousand pods (needs root, etcd-server, runc; half an hour the first time)
	$(CARGO) build --release --workspace --bins
	$(SUDO) script/test-kubernetes $(ARGS)

test-node: image ## A real Kubernetes node runs the image by the chart (needs root, etcd-server, runc, containernetworking-plugins; half an hour the first time)
	$(SUDO) env IMAGE_ARCHIVE=$$(ls $(abspath $(TARGET))/image/obi-*.tar) script/test-node

# Helm, or the version that is known to work, built from its Go module.
HELM   ?= $(shell command -v helm || echo $(abspath $(TARGET))/tools/helm)
HELM_VERSION := v3.22.0

chart: ## The chart: checked with every set of values in ci/, rendered, packed into $(TARGET)/chart (UPDATE_REFERENCE=1: writes deploy/daemonset.yaml)
	[ -x "$(HELM)" ] || GOBIN=$(abspath $(TARGET))/tools go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)
	script/check-chart "$(HELM)" $(TARGET)/chart

fmt: ## Format the source
	$(CARGO) fmt --all

# `test` runs its parts one after another, also under `make -j`.
.NOTPARALLEL:
