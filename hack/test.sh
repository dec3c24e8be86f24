#!/usr/bin/env bash
# Runs all checks and tests in two tracks at the same time, and prints how long each part took.
#
#   hack/test.sh          what make test runs
#   hack/test.sh --full   the tests of the lane "full" too (make test-full)
#
# The end-to-end tests mostly wait, so they run beside the checks and the unit tests, which only need
# CPU. The second track has the lowest CPU priority: otherwise it would delay the heartbeats and
# elections that the end-to-end tests measure.
set -euo pipefail
cd "$(dirname "$0")/.."

lanes=()
case "${1:-}" in
'') ;;
--full) lanes=(-full) ;;
*)
	echo "usage: $0 [--full]" >&2
	exit 2
	;;
esac

export CGO_ENABLED=1 # the race detector needs it
work="$(mktemp -d)"
times="$work/times"
export E2E_FIGURES="$work/figures"

part() { # name command...
	local name="$1" began status=0 now
	shift
	began="$(date +%s)"
	echo "== $name"
	"$@" || status=$?
	now="$(date +%s)"
	printf '%-24s %5d s  %s\n' "$name" $((now - began)) "$( ((status == 0)) && echo ok || echo FAILED)" >>"$times"
	return "$status"
}

# The driver of virtual machines needs a build tag; programs without cgo ignore the tag. Vet runs in lint.
go_test() { go test -race -vet=off -tags libvirt_dlopen -timeout 30m "$@"; }

unit() {
	local packages
	mapfile -t packages < <(go list ./... | grep -v '/e2e$\|/e2e/')
	go_test -p "$(nproc)" "${packages[@]}"
}

# Everything in e2e/ but the tests that e2e/lanes runs.
e2e_packages() {
	local packages
	mapfile -t packages < <(go list ./e2e/... | grep -v '/e2e$')
	go_test "${packages[@]}"
}

# The runner is built as the programs under test, which it builds first: both use one build cache.
end_to_end_tests() {
	CGO_ENABLED=0 go build -trimpath -o "$work/lanes" ./e2e/lanes && "$work/lanes" "${lanes[@]}"
}

# A track runs all its parts, also after a failure.
checks() {
	local status=0
	part "generated code" hack/proto.sh --check || status=1
	part "lint and vet" hack/lint.sh || status=1
	part "audit" hack/audit.sh || status=1
	part "unit tests" unit || status=1 # last: some measure time too
	return "$status"
}

end_to_end() {
	local status=0
	part "end-to-end tests" end_to_end_tests || status=1
	part "docs, harness, demo" e2e_packages || status=1
	return "$status"
}

began="$(date +%s)"
track=""
trap 'rm -rf "$work"; [[ -z "$track" ]] || kill -- "-$track" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
part "formatting" make --no-print-directory fmt-check
set -m # the second track gets a process group, which ends with this script
(
	set +m
	renice -n 19 "$BASHPID" >/dev/null
	checks
) &
track=$!
set +m
status=0
end_to_end || status=1
wait "$track" || status=1
track=""

if [[ -s "$E2E_FIGURES" ]]; then
	echo "measured:"
	sed 's/^/  /' "$E2E_FIGURES"
fi
echo "parts:"
sed 's/^/  /' "$times"
printf '  %-24s %5d s\n' "all" $(($(date +%s) - began))
exit "$status"
