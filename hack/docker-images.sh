#!/usr/bin/env bash
# Builds or pushes one image per program.
#
#   hack/docker-images.sh build|push NAME...
#
# Names: [REGISTRY/]NAME:VERSION, for example registry.example/persys/persys-scheduler:v1.2.0.
# An image is FROM scratch with one static binary, so the build needs no network. The layer of the binary, which
# comes first, is the same in all images. The name of the program is a link to it.
set -euo pipefail
cd "$(dirname "$0")/.."

verb="${1:-}"
shift || true
version="${VERSION:-dev}"
version="${version//[^A-Za-z0-9_.-]/-}"
prefix="${REGISTRY:+${REGISTRY%/}/}"
case "$verb" in
build) [[ -n "${BIN:-}" ]] || make --no-print-directory build ;; # BIN is a folder of built programs
push)
	if [[ -z "$prefix" ]]; then
		echo "$0: REGISTRY is not set: run make docker-push REGISTRY=host/path" >&2
		exit 2
	fi
	;;
*)
	echo "usage: $0 build|push NAME..." >&2
	exit 2
	;;
esac

for name in "$@"; do
	image="$prefix$name:$version"
	if [[ "$verb" == push ]]; then
		if ! docker image inspect "$image" >/dev/null 2>&1; then
			echo "$0: $image is not built: make docker-build with the same REGISTRY and VERSION first" >&2
			exit 1
		fi
		docker push "$image"
		continue
	fi
	context="$(mktemp -d)"
	cp "${BIN:-bin}/persys" "$context/persys"
	mkdir "$context/link"
	ln -s persys "$context/link/$name"
	cp "deploy/docker/$name.Dockerfile" "$context/Dockerfile"
	# The root certificates of this machine, for TLS to registries and Vault.
	if [[ -r /etc/ssl/certs/ca-certificates.crt ]]; then
		cp /etc/ssl/certs/ca-certificates.crt "$context/"
	else
		: >"$context/ca-certificates.crt"
	fi
	mkdir "$context/empty"
	# Show the output of docker build only if the build fails.
	if ! said="$(docker build -q --label "org.opencontainers.image.version=$version" -t "$image" "$context" 2>&1)"; then
		echo "$said" >&2
		exit 1
	fi
	rm -rf "$context"
	echo "$image"
done
