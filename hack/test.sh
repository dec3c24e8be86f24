#!/usr/bin/env bash
# Compiles everything, then runs all checks and tests in five tracks at the same time, and prints how long each part
# took.
#
#   hack/test.sh          what make test runs
#   hack/test.sh --full   the tests of the lane "full" too (make test-full)
#
# The tests of e2e, documents and drivers mostly wait; the simulator and the checks need CPU. The end-to-end tests have
# the highest CPU priority, because a delay would cost them heartbeats and elections. The tests of the drivers take long,
# so all unit tests come before the simulator and the checks, which use what is left.
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
# The programs under test are built with -trimpath. The same flag everywhere compiles each package once
# for all tracks. With GOGC=400 compilers and linkers take a fifth less CPU time; the tests run without it.
export GOFLAGS="-trimpath '-toolexec=env GOGC=400'"
work="$(mktemp -d)"
times="$work/times"
export E2E_FIGURES="$work/figures"

# Schedulers under test wait for the disk with every entry of their logs. If compilers and other tests keep one disk busy,
# such a write takes seconds, and leaders step down. So temporary files of tests are in memory where there is enough.
# Compilers keep theirs on disk. The size is larger than the memory because nodes under test offer the free space as disk.
memory_for_files=""
if [[ "$(id -u)" == 0 && "$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)" -ge 14 ]]; then
	memory_for_files="/tmp/pt.$$" # a short name, because the paths of Unix sockets are limited
	mkdir "$memory_for_files"
	if mount -t tmpfs -o size=64g,mode=1777 persys-tests "$memory_for_files"; then
		export GOTMPDIR="${GOTMPDIR:-${TMPDIR:-/tmp}}" TMPDIR="$memory_for_files"
	else
		rmdir "$memory_for_files"
		memory_for_files=""
	fi
fi
free_memory() {
	[[ -n "$memory_for_files" ]] || return 0
	umount --lazy "$memory_for_files" && rmdir "$memory_for_files"
}

# Sets cpu to the CPU seconds that the ended children of this shell used. Bash's times must run in this shell: in
# a subshell it would print the times of the subshell.
cpu_seconds() {
	local file="$work/cpu.$BASHPID"
	times >"$file"
	cpu="$(awk 'NR == 2 { split($1, u, "[ms]"); split($2, s, "[ms]"); printf "%d", 60 * (u[1] + s[1]) + u[2] + s[2] }' "$file")"
}

part() { # name command...
	local name="$1" began status=0 now cpu before
	shift
	began="$(date +%s)"
	cpu_seconds
	before="$cpu"
	echo "== $name"
	"$@" || status=$?
	now="$(date +%s)"
	cpu_seconds
	printf '%-24s %5d s, CPU %5d s  %s\n' "$name" $((now - began)) $((cpu - before)) \
		"$( ((status == 0)) && echo ok || echo FAILED)" >>"$times"
	return "$status"
}

# Compiles what the tracks need, so that no compiler slows down the tests: without it, a machine with empty caches would
# compile for a quarter of an hour while clusters under test have to keep their leases. With full caches this takes
# seconds. The programs that check the code are built at the same time.
compile() {
	local status=0 builds=() b
	(go list -export -deps -test -race ./... >/dev/null) & # the tests, and the programs with -race
	builds+=($!)
	(CGO_ENABLED=0 go list -export -deps ./cmd/... ./e2e/lanes >/dev/null && # the programs as they are released
		CGO_ENABLED=0 go list -export -deps -test ./sim . >/dev/null &&
		hack/lint.sh --install) &
	builds+=($!)
	for b in "${builds[@]}"; do wait "$b" || status=1; done
	return "$status"
}

# Vet runs in lint. On a slow machine a package may wait half an hour for parts with a higher priority, so its time limit
# is an hour.
go_test() { go test -race -vet=off -timeout 60m "$@"; }

# The packages whose tests wait longest come first, so that no long one is left for the end.
unit() {
	local first packages
	mapfile -t first < <(go list ./agent/driver/... ./rpc/... ./stack/... ./cmd/internal/... ./replica/...)
	mapfile -t packages < <(go list ./... | grep -v '/e2e$\|/e2e/\|/compute/sim$\|/compute$' |
		grep -vxF "$(printf '%s\n' "${first[@]}")")
	go_test "${first[@]}" "${packages[@]}"
}

# Tests in which the race detector can find nothing run without it, because it multiplies the CPU time: a run of
# the simulator has one goroutine and no lock, and the package at the root only reads sources. A few runs of the
# simulator with the detector would show data that two runs share.
single_threaded() {
	CGO_ENABLED=0 go test -vet=off -timeout 60m ./sim . &&
		SIM_SEEDS=8 go_test -run '^(TestManySeedsKeepEveryPromise|TestASeedAlwaysGivesTheSameRun)$' ./sim
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

# This script runs all parts, also after a failure.
checks() {
	local status=0
	part "lint and vet" hack/lint.sh || status=1
	part "audit" hack/audit.sh || status=1
	return "$status"
}

unit_tests() { part "unit tests" unit; }

simulator() { part "simulator, sources" single_threaded; }

documents() { part "documents, harness" e2e_packages; }

began="$(date +%s)"
tracks=()
trap 'rm -rf "$work"; for t in "${tracks[@]}"; do kill -- "-$t" 2>/dev/null || true; done; free_memory' EXIT
trap 'exit 130' INT TERM
status=0
part "formatting" make --no-print-directory fmt-check
part "compiling" compile || status=1
part "generated code" hack/proto.sh --check || status=1
background() { # niceness function
	set -m # a process group, which ends with this script
	(
		set +m
		renice -n "$1" "$BASHPID" >/dev/null
		"$2"
	) &
	tracks+=("$!")
	set +m
}
background 19 checks
background 15 simulator
background 5 unit_tests
background 3 documents
part "end-to-end tests" end_to_end_tests || status=1
for t in "${tracks[@]}"; do wait "$t" || status=1; done
tracks=()

if [[ -s "$E2E_FIGURES" ]]; then
	echo "measured:"
	sed 's/^/  /' "$E2E_FIGURES"
fi
echo "parts:"
sed 's/^/  /' "$times"
printf '  %-24s %5d s\n' "all" $(($(date +%s) - began))
exit "$status"
