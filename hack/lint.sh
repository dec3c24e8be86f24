#!/usr/bin/env bash
# Runs golangci-lint, which includes go vet. The first run builds the pinned version into .cache/bin,
# which takes some minutes. If it cannot be built, this runs go vet and gofmt instead; with CI=true it
# fails.
#
#   hack/lint.sh [flags of golangci-lint run]
#   hack/lint.sh --install   only builds golangci-lint
set -euo pipefail
cd "$(dirname "$0")/.."

version=2.15.0
bin="$PWD/.cache/bin/golangci-lint"
if ! "$bin" version 2>/dev/null | grep -qF "$version"; then
	echo "building golangci-lint $version" >&2
	mkdir -p "${bin%/*}"
	built=false
	for attempt in 1 2 3; do # a download may fail
		((attempt == 1)) || sleep 10
		if CGO_ENABLED=0 GOBIN="${bin%/*}" go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$version"; then
			built=true
			break
		fi
	done
	if ! $built; then
		if [[ "${CI:-}" == true ]]; then
			echo "golangci-lint cannot be built; is the Go module proxy reachable?" >&2
			exit 1
		fi
		[[ "${1:-}" != --install ]] || exit 0
		echo "SKIPPED: golangci-lint cannot be built here; running go vet and gofmt instead" >&2
		exec make --no-print-directory vet fmt-check
	fi
fi
[[ "${1:-}" != --install ]] || exit 0
# The linter reads the types of dependencies from compiled packages. With these flags they are the packages
# that the tests are built from; otherwise all of them would be compiled once more for the linter.
export CGO_ENABLED=1 GOFLAGS="${GOFLAGS:-} -trimpath -race"
exec "$bin" run "$@" ./...
