# make without a target prints the ## comment of every target.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell hack/version.sh)
REGISTRY ?=
# Static and reproducible binaries. Go's build information contains the commit.
GO_BUILD := CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'
IMAGES := persys-scheduler persys-agent persys-gateway persysctl

# Links to bin/persys, which is the program under whose name it is called.
NAMES := persys-scheduler persys-agent persys-gateway persysctl

.PHONY: help build test test-full e2e audit fuzz demo hello-image bench soak-elections proto proto-check sample-env reference fmt fmt-check vet lint dev-certs deps docker-build docker-push release clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/persys (static, no cgo), which is every program, and a link for each program
	@mkdir -p bin
	$(GO_BUILD) -o bin/persys ./cmd/persys
	@for name in $(NAMES); do ln -sf persys "bin/$$name"; done

test: ## Install what the tests need, then run every check and test, with -race (20 minutes on 2 cores)
	hack/install-test-deps.sh
	hack/test.sh

test-full: ## The same, and the tests that only wait (lane "full" in e2e/lanes.txt)
	hack/install-test-deps.sh
	hack/test.sh --full

e2e: ## Run end-to-end tests only (NAME=regexp)
	go run ./e2e/lanes -run '$(NAME)'

audit: ## Look for known vulnerabilities of dependencies with govulncheck (GOVULNDB=file:///...)
	hack/audit.sh

fuzz: ## Run every fuzz target for FUZZTIME (FUZZTIME=30s NAME=regexp)
	hack/fuzz.sh

demo: ## Start three schedulers and two agents, run a container, kill the leader (ARGS=--exit ends by itself)
	go run ./e2e/demo $(ARGS)

hello-image: ## Build examples/hello into the image persys/hello:demo, FROM scratch
	@mkdir -p bin/hello
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/hello/hello ./examples/hello
	printf 'FROM scratch\nCOPY hello /hello\nENTRYPOINT ["/hello"]\n' | docker build -q -t persys/hello:demo -f - bin/hello

bench: ## Run the named benchmarks, or all of them (NAME=failover)
	hack/install-test-deps.sh
	go run ./e2e/bench $(NAME)

soak-elections: ## Run ten minutes of full load, in which no election may happen
	hack/install-test-deps.sh
	go run ./e2e/bench soak-elections

proto: ## Generate Go code from api/*/v1/*.proto
	hack/proto.sh

proto-check: ## Fail if generated code differs from its sources
	hack/proto.sh --check

sample-env: ## Write sample.env from the settings of the programs
	go run ./cmd/persys env > sample.env.new && mv sample.env.new sample.env

reference: ## Write docs/reference from the programs (metrics, the API, persysctl, the fields and the schema of workloads)
	@mkdir -p docs/reference
	go run ./cmd/persys metrics > docs/reference/metrics.md.new && mv docs/reference/metrics.md.new docs/reference/metrics.md
	go run ./cmd/persys api > docs/reference/api.md.new && mv docs/reference/api.md.new docs/reference/api.md
	go run ./cmd/persysctl docs docs/reference
	go run ./cmd/persysctl schema > docs/reference/workload.schema.json.new && mv docs/reference/workload.schema.json.new docs/reference/workload.schema.json

fmt: ## Format every Go file
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go' ':!*.pb.go')

fmt-check: ## Fail if a Go file is not formatted
	@unformatted="$$(git ls-files --cached --others --exclude-standard '*.go' ':!*.pb.go' | xargs -r gofmt -l)"; \
	if [[ -n "$$unformatted" ]]; then echo "not formatted (make fmt):" >&2; echo "$$unformatted" >&2; exit 1; fi

vet: ## Run go vet
	go vet ./...

lint: ## Run golangci-lint, which includes go vet
	hack/lint.sh

dev-certs: ## Create a development CA and certificates for every program in certs/
	go run ./cmd/persysctl dev-certs certs

deps: ## Download modules and install the programs that builds and tests need
	go mod download
	hack/install-test-deps.sh

docker-build: ## Build one image per program FROM scratch (REGISTRY=host/path VERSION=tag)
	REGISTRY='$(REGISTRY)' VERSION='$(VERSION)' hack/docker-images.sh build $(IMAGES)

docker-push: ## Push the images; REGISTRY must be set
	REGISTRY='$(REGISTRY)' VERSION='$(VERSION)' hack/docker-images.sh push $(IMAGES)

release: ## Build programs, packages (deb, rpm, apk), images, SBOMs and checksums of VERSION into dist/ (ARCHES=amd64)
	VERSION='$(VERSION)' REGISTRY='$(REGISTRY)' hack/release.sh

clean: ## Remove the output of all targets, except certs/
	rm -rf bin dist artifacts .cache
