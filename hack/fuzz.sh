#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME each (default 30s), one after the other, or those whose name
# matches NAME. What a target finds is kept below testdata/fuzz of its package and is tried by every
# test run from then on: mend it, and commit both.
set -euo pipefail
cd "$(dirname "$0")/.."

export CGO_ENABLED=1 GOFLAGS="${GOFLAGS:-} -tags=libvirt_dlopen"
status=0
while IFS=: read -r file name; do
	[[ $name =~ ${NAME:-.} ]] || continue
	dir="./$(dirname "$file")"
	echo "== $dir $name"
	# Go would spend a minute on making one large input smaller that only reaches new code.
	go test "$dir" -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 10x || status=$?
done < <(git grep -E --untracked '^func Fuzz[A-Za-z]+\(f \*testing\.F\)' -- '*_test.go' | sed -E 's/^([^:]+):func (Fuzz[A-Za-z]+)\(.*/\1:\2/')
exit "$status"
