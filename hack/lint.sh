#!/usr/bin/env bash
# Runs golangci-lint, pinned, from .cache/bin; builds it there first (some minutes, once). Where it
# cannot be built, go vet and gofmt run instead, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

version=2.15.0
bin="$PWD/.cache/bin/golangci-lint"
if ! "$bin" version 2>/dev/null | grep -qF "$version"; then
	echo "building golangci-lint $version" >&2
	mkdir -p "${bin%/*}"
	if ! GOBIN="${bin%/*}" go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$version"; then
		echo "golangci-lint cannot be built here; running go vet and gofmt instead" >&2
		exec make --no-print-directory vet fmt-check
	fi
fi
exec "$bin" run "$@" ./...
