# The build. `make help` lists the targets; CONTRIBUTING.md tells more.

.DEFAULT_GOAL := help
.PHONY: help test bench check format vet tidy lint fmt release redis-server postgresql pgbouncer
# One target at a time: each uses every processor by itself, and their output would mix.
.NOTPARALLEL:

# Each module is built by its own go.mod, whatever workspace the developer has. Nothing is stamped with the state of the
# repository, since reading that fails in a clone that belongs to another user, as in many containers.
export GOWORK := off
export GOFLAGS := $(GOFLAGS) -buildvcs=false

# For one package's tests (go test -timeout). A hang ends with every goroutine's stack, before CI's own limit ends it without.
TIMEOUT := 20m
# How many schedules to simulate in each of the three modes. The race detector is left out of that: it would take five times
# as long and has seen some of them before.
SCHEDULES := 7000
# More flags for go test: make test TESTFLAGS='-run TestCase016 -v'
TESTFLAGS :=
# Flags for the measuring: make bench BENCHFLAGS=-short does everything once, for a moment. benchmarks/README.md has more.
BENCHFLAGS :=

LINT_VERSION := v2.15.0
LINT := .bin/golangci-lint-$(LINT_VERSION)

# $(call in-every-module,COMMAND) runs the command in the folder of every go.mod, the root's first.
define in-every-module
@failed=; $(call try-in-every-module,$(1)); $(fail-if-any-failed)
endef

# The parts of it, for a target of several stages: a failure keeps neither the other modules nor the later stages from
# running, and the target fails in the end and names what failed.
define try-in-every-module
for dir in $$(find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*' | sed 's|/go\.mod$$||' | sort); do \
	echo "== $$dir: $@"; \
	(cd "$$dir" && $(1)) || failed="$$failed $$dir"; \
done
endef
fail-if-any-failed = if [ -n "$$failed" ]; then echo "make $@: failed in$$failed" >&2; exit 1; fi

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

test: redis-server postgresql pgbouncer ## run every module's tests under the race detector, in random order
	@if [ -z "$$LOKI_TEST_MSSQL_DSN" ]; then \
		echo "LOKI_TEST_MSSQL_DSN is not set: tests that need a real SQL Server are skipped."; \
	fi
	@failed=; \
	$(call try-in-every-module,CGO_ENABLED=1 go test -race -shuffle=on -timeout=$(TIMEOUT) $(TESTFLAGS) ./...); \
	echo "== .: $(SCHEDULES) simulated schedules in each mode"; \
	go test -run '^TestSimulation_(Alone|Async|Sync)$$' -timeout=$(TIMEOUT) ./internal/simulation -loki.schedules=$(SCHEDULES) || failed="$$failed the simulated schedules"; \
	echo "== .: every benchmark once"; \
	CGO_ENABLED=1 go test -race -run '^$$' -bench . -benchtime 1x -timeout=$(TIMEOUT) . ./internal/agenda || failed="$$failed the benchmarks"; \
	$(fail-if-any-failed)

bench: redis-server postgresql ## measure against other libraries and rewrite benchmarks/RESULTS.md: six minutes, on a quiet machine
	go -C benchmarks run ./compare $(BENCHFLAGS)

check: format vet tidy lint ## look for what needs no test to be seen: format, vet, tidy, lint

format: ## fail if a file is not as gofmt writes it
	@files=$$(gofmt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted, run make fmt:"; echo "$$files"; exit 1; fi

vet: ## run go vet in every module
	$(call in-every-module,go vet ./...)

tidy: ## fail if a go.mod or go.sum is not as go mod tidy writes it
	$(call in-every-module,go mod tidy -diff)

lint: $(LINT) ## run golangci-lint in every module
	$(call in-every-module,"$(CURDIR)/$(LINT)" run --allow-serial-runners --config "$(CURDIR)/.golangci.yml" ./...)

fmt: ## format every file
	gofmt -w .

release: ## make release VERSION=v0.1.0 shows what a release would do; RELEASE=yes makes its commits and tags
	@go -C internal/release run . -repo "$(CURDIR)" -version "$(VERSION)" $(if $(filter yes,$(RELEASE)),-write)

# Built here rather than downloaded, so that it is made by the Go that made the code, on any machine. Compiling takes
# minutes, once.
$(LINT):
	GOBIN="$(CURDIR)/.bin" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv .bin/golangci-lint $@

# The tests start servers of their own, on free ports, and need the programs alone.
redis-server:
	$(call install-unless,command -v redis-server,redis-server,redis,redis,redis)

# Debian keeps initdb out of PATH; the tests know where, and so does this.
postgresql:
	$(call install-unless,ls "$$(command -v initdb)" /usr/lib/postgresql/*/bin/initdb /usr/libexec/postgresql*/initdb /usr/pgsql-*/bin/initdb 2>/dev/null | grep -q .,postgresql,postgresql-server,postgresql,postgresql)

pgbouncer:
	$(call install-unless,command -v pgbouncer /usr/sbin/pgbouncer,pgbouncer,pgbouncer,pgbouncer,pgbouncer)

# $(call install-unless,TEST,PACKAGE OF apt-get,OF dnf,OF apk,OF brew)
define install-unless
@$(1) >/dev/null && exit 0; \
if [ "$$(id -u)" = 0 ]; then root=env; else root=$$(command -v sudo); fi; \
if [ -n "$$root" ] && command -v apt-get >/dev/null; then \
	$$root apt-get update -qq; \
	$$root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(2); \
elif [ -n "$$root" ] && command -v dnf >/dev/null; then $$root dnf install -y $(3); \
elif [ -n "$$root" ] && command -v apk >/dev/null; then $$root apk add $(4); \
elif command -v brew >/dev/null; then brew install $(5); \
fi; \
$(1) >/dev/null && exit 0; \
echo "make: the tests need $@, which could not be installed from here: install the package $(2) (elsewhere $(3)) and try again" >&2; \
exit 1
endef
