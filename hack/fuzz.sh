#!/usr/bin/env bash
# Runs every fuzz target, or those whose name matches NAME, for FUZZTIME each (default 30s). A failing
# input is written below testdata/fuzz of the package, and every later test run tries it: fix the fault
# and commit both.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
while IFS=: read -r file name; do
	[[ $name =~ ${NAME:-.} ]] || continue
	dir="./$(dirname "$file")"
	echo "== $dir $name"
	# Without this limit, Go spends up to a minute on minimizing one large input that only reaches new code.
	go test "$dir" -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 10x || status=$?
done < <(git grep -E --untracked '^func Fuzz[A-Za-z]+\(f \*testing\.F\)' -- '*_test.go' | sed -E 's/^([^:]+):func (Fuzz[A-Za-z]+)\(.*/\1:\2/')
exit "$status"
