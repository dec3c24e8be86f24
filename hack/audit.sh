#!/usr/bin/env bash
# Runs gosec and govulncheck. The versions are pinned in tools/audit; the first run builds them into
# .cache/bin, which takes some minutes. tools/audit filters the findings by its lists of exceptions.
set -euo pipefail
cd "$(dirname "$0")/.."

export CGO_ENABLED="${CGO_ENABLED:-1}" # gosec reads the files that cgo builds use
bin="$PWD/.cache/bin"
mkdir -p "$bin"
stamp="$(sha256sum tools/audit/go.sum | cut -c1-16)"
if [[ ! -x $bin/gosec || ! -x $bin/govulncheck || $(cat "$bin/audit.version" 2>/dev/null) != "$stamp" ]]; then
	echo "building gosec and govulncheck" >&2
	(cd tools/audit && GOFLAGS= CGO_ENABLED=0 go build -o "$bin/" github.com/securego/gosec/v2/cmd/gosec golang.org/x/vuln/cmd/govulncheck)
	echo "$stamp" >"$bin/audit.version"
fi
(cd tools/audit && GOFLAGS= go vet . && GOFLAGS= go test . && GOFLAGS= go build -o "$bin/audit" .)
status=0
"$bin/audit" gosec "$bin/gosec" || status=$?
"$bin/audit" govulncheck "$bin/govulncheck" || status=$?
exit "$status"
