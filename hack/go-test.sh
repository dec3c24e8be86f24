#!/usr/bin/env bash
# Runs every test with the race detector. Extra arguments go to go test.
#
# Packages run two at a time on a small machine: the failure tests in e2e start whole clusters and
# measure time, and would measure each other if more of them ran side by side. They come last and
# alone for the same reason.
set -euo pipefail
cd "$(dirname "$0")/.."

cpus="$(nproc)"
parallel=$((cpus < 4 ? 2 : cpus / 2))
export CGO_ENABLED=1 # the race detector needs it
# The driver of virtual machines is built with it; programs without cgo ignore it.
export GOFLAGS="${GOFLAGS:-} -tags=libvirt_dlopen"

mapfile -t all < <(go list ./... | grep -v '/e2e\(/\|$\)')
status=0
go test -race -timeout 20m -p "$parallel" "$@" "${all[@]}" || status=$?
if [[ -d e2e ]]; then
	# One package holds most of them: on a busy machine with two cores it takes half an hour.
	figures="${TMPDIR:-/tmp}/persys-e2e-figures.$UID" # one path, so that go test can reuse what it knows
	rm -f "$figures"
	E2E_FIGURES="$figures" go test -race -timeout 45m -p 1 "$@" ./e2e/... || status=$?
	if [[ -s "$figures" ]]; then
		echo "measured:"
		sed 's/^/  /' "$figures"
	fi
	rm -f "$figures"
fi
exit "$status"
