#!/usr/bin/env bash
# Generates Go code from every api/*/v1/*.proto, next to its source.
#
#   hack/proto.sh            generate in place
#   hack/proto.sh --check    fail if the committed code differs from the generated code
#
# Needs protoc (Debian: protobuf-compiler). The plugins come from tools/go.mod, so every machine uses
# the same versions. The header line with the version of protoc is not compared: for Go, protoc only
# parses the sources, and all versions in use do so in the same way.
set -euo pipefail
cd "$(dirname "$0")/.."

bin="$PWD/.cache/bin"
check=false
case "${1:-}" in
'') ;;
--check) check=true ;;
*)
	echo "usage: $0 [--check]" >&2
	exit 2
	;;
esac

if ! command -v protoc >/dev/null; then
	echo "$0: protoc is missing; on Debian: apt-get install protobuf-compiler (make deps does it)" >&2
	exit 1
fi
mkdir -p "$bin"
# The flags are those of the programs under test, so that both share compiled packages.
(cd tools && CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=readonly -trimpath" GOBIN="$bin" go install tool ./openapi3)

shopt -s nullglob
sources=(api/*/v1/*.proto)
out=.
if $check; then
	out="$(mktemp -d)"
	trap 'rm -rf "$out"' EXIT # replaced below
fi
# Paths are relative to the root of the repository, in the descriptors too: names such as
# api/control/v1/control.proto cannot clash with those of other copies of the contract.
PATH="$bin:$PATH" protoc -I . \
	--go_out="$out" --go_opt=paths=source_relative \
	--go-grpc_out="$out" --go-grpc_opt=paths=source_relative \
	"${sources[@]}"
# Packages whose messages contain each other must be generated together. The commands of the Raft log,
# which no other package contains, also get code that decodes without copying strings (fsm.DecodeBatch).
commands=() others=()
for source in "${sources[@]}"; do
	case "$source" in
	api/command/*) commands+=("$source") ;;
	*) others+=("$source") ;;
	esac
done
features=marshal+unmarshal+size+clone
PATH="$bin:$PATH" protoc -I . --go-vtproto_out="$out" --go-vtproto_opt="paths=source_relative,features=$features" "${others[@]}"
PATH="$bin:$PATH" protoc -I . --go-vtproto_out="$out" --go-vtproto_opt="paths=source_relative,features=$features+unmarshal_unsafe" "${commands[@]}"

# REST handlers and the OpenAPI documents of the gateway, from the same sources and api/rest/rest.yaml.
# The handlers of each service have a package of their own, so that the API packages do not import HTTP.
rest="$(mktemp -d)"
trap 'rm -rf "$rest"; $check && rm -rf "$out"' EXIT
exposed=(api/control/v1/control.proto api/cluster/v1/cluster.proto)
PATH="$bin:$PATH" protoc -I . \
	--grpc-gateway_out="$rest" --grpc-gateway_opt=paths=source_relative,standalone=true,grpc_api_configuration=api/rest/rest.yaml \
	--openapiv2_out="$rest" --openapiv2_opt=grpc_api_configuration=api/rest/rest.yaml,allow_merge=true,merge_file_name=openapi,openapi_configuration=api/rest/openapi.yaml \
	--openapiv2_opt=preserve_rpc_order=true,disable_default_errors=true,omit_enum_default_value=true,json_names_for_fields=false,disable_service_tags=true \
	"${exposed[@]}"
for source in "${exposed[@]}"; do
	to="$out/api/rest/$(cut -d/ -f2,3 <<<"$source" | tr -d /)"
	mkdir -p "$to"
	cp "$rest/${source%.proto}.pb.gw.go" "$to/"
done
cp "$rest/openapi.swagger.json" "$out/api/rest/openapi.json"
"$bin/openapi3" <"$rest/openapi.swagger.json" >"$out/api/rest/openapi3.json"
$check || exit 0

status=0
while IFS= read -r file; do
	if ! diff -q <(sed '/^\/\/ .*protoc  *v[0-9]/d' "$out/$file") <(sed '/^\/\/ .*protoc  *v[0-9]/d' "$file" 2>/dev/null) >/dev/null; then
		echo "$file differs from the generated code: run make proto and commit the result" >&2
		status=1
	fi
done < <(cd "$out" && find api -name '*.pb.go' -o -name '*.pb.gw.go' -o -name 'openapi*.json' | sort)
while IFS= read -r file; do
	if [[ ! -e "$out/$file" ]]; then
		echo "$file has no source any more: remove it" >&2
		status=1
	fi
done < <(find api -name '*.pb.go' -o -name '*.pb.gw.go' | sort)
exit $status
