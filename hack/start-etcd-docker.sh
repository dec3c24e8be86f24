#!/usr/bin/env bash
# Runs one etcd in a container on 127.0.0.1:2379 of a laptop, as a target of the mirror. Not for
# production: it has one member and no TLS.
#
#   hack/start-etcd-docker.sh           start it, unless it runs
#   hack/start-etcd-docker.sh stop      remove the container and keep its data
#   hack/start-etcd-docker.sh wipe      remove the container and its data
#
# ETCD_PORT (2379) and ETCD_NAME (persys-etcd, the container and its volume) may be set.
#
# The image is built FROM scratch with the program of Debian's etcd-server package; nothing is pulled
# from a registry. Then run: ETCD_ENDPOINTS=127.0.0.1:2379 bin/persys-scheduler -insecure
set -euo pipefail

name="${ETCD_NAME:-persys-etcd}"
port="${ETCD_PORT:-2379}"
image=persys-etcd:debian

die() {
	echo "$0: $*" >&2
	exit 1
}

command -v docker >/dev/null || die "docker is missing; on Debian: apt-get install docker.io"
docker version >/dev/null 2>&1 || die "the Docker engine does not answer; is it running, and may this user talk to it?"

case "${1:-start}" in
start) ;;
stop | wipe)
	docker rm -f "$name" >/dev/null 2>&1 || true
	if [[ "$1" == wipe ]]; then docker volume rm -f "$name" >/dev/null; fi
	exit 0
	;;
*) die "unknown argument $1; it is start, stop or wipe" ;;
esac

healthy() {
	local answer
	answer="$( (exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && timeout 2 cat <&3) 2>/dev/null)" || return 1
	[[ "$answer" == *'"health":"true"'* ]]
}

build() {
	local work binary lib
	work="$(mktemp -d)"
	# shellcheck disable=SC2064 # expand the folder now
	trap "rm -rf '$work'" EXIT
	if binary="$(command -v etcd)"; then
		echo "building $image from $binary"
	else
		command -v apt-get >/dev/null || die "no etcd on this machine, and no apt-get to fetch Debian's etcd-server with"
		echo "building $image from Debian's etcd-server package"
		(cd "$work" && apt-get -o APT::Sandbox::User=root download -qq etcd-server 2>"$work/apt.log") || {
			cat "$work/apt.log" >&2
			die "cannot download etcd-server; has apt-get update been run?"
		}
		dpkg -x "$work"/etcd-server_*.deb "$work/package"
		binary="$work/package/usr/bin/etcd"
	fi
	mkdir -p "$work/image/usr/bin" "$work/image/data" "$work/image/tmp"
	cp "$binary" "$work/image/usr/bin/etcd"
	# A dynamic binary needs its loader and libraries at the same paths: all absolute paths that ldd
	# prints. A static binary has none.
	while IFS= read -r lib; do
		mkdir -p "$work/image${lib%/*}"
		cp -L "$lib" "$work/image$lib"
	done < <(ldd "$binary" 2>/dev/null | grep -o '/[^ ]*' || true)
	cat >"$work/Dockerfile" <<-'EOF'
		FROM scratch
		COPY image/ /
		EXPOSE 2379
		VOLUME /data
		ENTRYPOINT ["/usr/bin/etcd", "--data-dir=/data", "--listen-client-urls=http://0.0.0.0:2379"]
	EOF
	docker build -q -t "$image" "$work" >/dev/null
}

case "$(docker inspect -f '{{.State.Running}}' "$name" 2>/dev/null || echo absent)" in
true) ;;
false) docker start "$name" >/dev/null ;;
*)
	if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
		die "port $port of 127.0.0.1 is used by another program; set ETCD_PORT"
	fi
	docker image inspect "$image" >/dev/null 2>&1 || build
	docker run -d --name "$name" --restart unless-stopped \
		-p "127.0.0.1:$port:2379" -v "$name:/data" \
		"$image" --name "$name" --advertise-client-urls "http://127.0.0.1:$port" >/dev/null
	;;
esac

for ((i = 0; i < 100; i++)); do
	if healthy; then
		echo "etcd answers: ETCD_ENDPOINTS=127.0.0.1:$port"
		exit 0
	fi
	sleep 0.1
done
docker logs --tail 20 "$name" >&2 || true
die "etcd does not answer on 127.0.0.1:$port after 10 s"
