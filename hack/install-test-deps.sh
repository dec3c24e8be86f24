#!/usr/bin/env bash
# Installs what building and testing need and this machine lacks, from Debian's packages. Says what
# it installs and why; installs nothing that is there already. Needs root or sudo only if something
# is missing.
set -euo pipefail

if ! command -v go >/dev/null 2>&1; then
	# Not from Debian: its compiler is older than go.mod asks for.
	echo "$0: go is missing; go.mod names the version that is needed (https://go.dev/dl)" >&2
	exit 1
fi

missing=()
need() { # command package why
	if ! command -v "$1" >/dev/null 2>&1 && [[ ! -x "/usr/sbin/$1" ]]; then
		echo "$1 is missing: installing $2 ($3)"
		missing+=("$2")
	fi
}
need gcc gcc "the race detector needs cgo"
need protoc protobuf-compiler "generated code is checked against its source"
if [[ ! -e /usr/include/google/protobuf/timestamp.proto ]]; then
	echo "protoc's own .proto files are missing: installing libprotobuf-dev (the contracts import them)"
	missing+=(libprotobuf-dev)
fi
need git git "the version of a build"
need dig dnsutils "the DNS server is asked by it, too"
need promtool prometheus "the alert rules are checked and provoked by it"
need etcd etcd-server "the peer of the benchmarks and the mirror's tests"
need docker-compose docker-compose "Compose stacks are run by this command too"
need iptables iptables "the failure tests cut the network between replicas"
need chromium chromium "the web console is tested in a real browser"
if ! command -v docker >/dev/null 2>&1; then
	echo "docker is missing: installing docker.io (the agent's tests run real containers)"
	missing+=(docker.io)
fi
# A shell for test containers: no image can be assumed to be pullable.
if [[ ! -x /bin/busybox ]] || ldd /bin/busybox >/dev/null 2>&1; then
	echo "a static busybox is missing: installing busybox-static (test containers are built from it)"
	missing+=(busybox-static)
fi
((${#missing[@]})) || exit 0

as_root=()
if ((EUID != 0)); then
	if ! command -v sudo >/dev/null 2>&1; then
		echo "$0: run this as root, or install yourself: ${missing[*]}" >&2
		exit 1
	fi
	as_root=(sudo)
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "$0: this machine has no apt-get; install yourself: ${missing[*]}" >&2
	exit 1
fi

# Packages must not start services of their own here: tests start what they need, on ports they
# choose. Docker's is the exception; .ci/run starts it where no init system did.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy && ! -d /run/systemd/system ]]; then
	printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
	"${as_root[@]}" chmod +x "$policy"
	trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
"${as_root[@]}" apt-get update -qq
install
echo "installed: ${missing[*]}"
if [[ " ${missing[*]} " == *" etcd-server "* && -d /run/systemd/system ]]; then
	# Debian starts it at once on the port that the mirror looks at by default.
	"${as_root[@]}" systemctl disable --now etcd >/dev/null 2>&1 || true
fi
if [[ " ${missing[*]} " == *" prometheus "* && -d /run/systemd/system ]]; then
	"${as_root[@]}" systemctl disable --now prometheus prometheus-node-exporter >/dev/null 2>&1 || true
fi
