#!/usr/bin/env bash
# Builds the files of a release into dist/: programs for linux amd64 and arm64, persysctl for macOS and
# Windows too, Debian packages, container images, software bills of materials, and checksums.
#
#   VERSION=v1.2.0 hack/release.sh
#
# DIST names another folder, ARCHES="amd64" builds for one architecture only, IMAGES=none builds no
# images. The agent with virtual machines needs a C compiler for each architecture (Debian: gcc,
# gcc-aarch64-linux-gnu). Without one, that agent and its package are left out, and the last line names
# them; with STRICT=1 this is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION="${VERSION:-$(git describe --tags --always --dirty)}"
ARCHES="${ARCHES:-amd64 arm64}"
IMAGES="${IMAGES:-persys-scheduler persys-agent persys-gateway persysctl}"
DIST="${DIST:-$PWD/dist}"
# A Debian version begins with a digit. A build without a tag sorts before every release, a release
# candidate (v1.0.0-rc1) before its release, and a build after a tag (v1.0.0-3-gabc) after the tag.
DEB_VERSION="${VERSION#v}"
[[ $DEB_VERSION =~ ^[0-9.]+-(alpha|beta|rc|pre) ]] && DEB_VERSION="${DEB_VERSION/-/\~}"
DEB_VERSION="${DEB_VERSION//-/+}"
[[ $VERSION =~ ^v?[0-9]+\.[0-9] ]] || DEB_VERSION="0~git.${DEB_VERSION}"
export VERSION DEB_VERSION DIST

left_out=()
declare -A compiler=([amd64]=x86_64-linux-gnu-gcc [arm64]=aarch64-linux-gnu-gcc)
for arch in $ARCHES; do
	if [[ -z "${compiler[$arch]:-}" ]]; then
		echo "$0: ARCHES=$arch: it must be amd64 or arm64" >&2
		exit 2
	fi
	if ! command -v "${compiler[$arch]}" >/dev/null; then
		echo "$0: ${compiler[$arch]} is missing, which the agent with virtual machines for $arch needs:" >&2
		echo "  apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross   (or ARCHES=amd64)" >&2
		[[ -z "${STRICT:-}" ]] || exit 1
		left_out+=("persys-agent-libvirt for $arch")
	fi
done

echo "$VERSION for $ARCHES into $DIST"
if [[ -n "$(ls -A "$DIST" 2>/dev/null)" && ! -e "$DIST/SHA256SUMS" ]]; then
	echo "$0: DIST=$DIST has other files; name an empty folder" >&2
	exit 2
fi
rm -rf "$DIST"
mkdir -p "$DIST/sbom"
touch "$DIST/SHA256SUMS"
tools="$PWD/.cache/release"
mkdir -p "$tools"
(cd tools/release && GOFLAGS=-mod=readonly GOBIN="$tools" CGO_ENABLED=0 go install tool)

programs=(persys-scheduler=scheduler persys-agent=agent persys-gateway=gateway persysctl=persysctl persys=persys)
build() { # GOARCH output package [go build flags]
	local arch="$1" out="$2" pkg="$3"
	shift 3
	GOOS="${GOOS:-linux}" GOARCH="$arch" go build -trimpath -ldflags "-s -w -X main.version=$VERSION" "$@" -o "$out" "$pkg"
}
for arch in $ARCHES; do
	bin="$DIST/linux_$arch"
	mkdir -p "$bin"
	for program in "${programs[@]}"; do
		echo "linux/$arch ${program%%=*}"
		CGO_ENABLED=0 build "$arch" "$bin/${program%%=*}" "./cmd/${program##*=}"
	done
	if command -v "${compiler[$arch]}" >/dev/null; then
		echo "linux/$arch persys-agent-libvirt"
		CGO_ENABLED=1 CC="${compiler[$arch]}" build "$arch" "$bin/persys-agent-libvirt" ./cmd/agent -tags libvirt_dlopen
	fi
	for file in "$bin"/*; do
		"$tools/cyclonedx-gomod" bin -json -output "$DIST/sbom/$(basename "$file")_linux_$arch.cdx.json" -version "$VERSION" "$file" 2>/dev/null
	done
done

# The command line also for macOS and Windows. Each archive holds one program.
mtime="@$(git log -1 --format=%ct)"
for arch in $ARCHES; do
	for os in darwin windows; do
		echo "$os/$arch persysctl"
		name=persysctl
		[[ $os != windows ]] || name=persysctl.exe
		mkdir -p "$DIST/${os}_$arch"
		GOOS="$os" CGO_ENABLED=0 build "$arch" "$DIST/${os}_$arch/$name" ./cmd/persysctl
		"$tools/cyclonedx-gomod" bin -json -output "$DIST/sbom/persysctl_${os}_$arch.cdx.json" -version "$VERSION" "$DIST/${os}_$arch/$name" 2>/dev/null
		tar -C "$DIST/${os}_$arch" --owner=0 --group=0 --numeric-owner --mtime="$mtime" -czf "$DIST/persysctl_${VERSION}_${os}_$arch.tar.gz" "$name"
	done
done

# Completion and manual pages are printed by persysctl, by a build for this machine.
mkdir -p "$DIST/share/completion"
ctl="$(mktemp)"
CGO_ENABLED=0 go build -trimpath -o "$ctl" ./cmd/persysctl
"$ctl" completion bash >"$DIST/share/completion/persysctl.bash"
"$ctl" completion zsh >"$DIST/share/completion/_persysctl"
"$ctl" completion fish >"$DIST/share/completion/persysctl.fish"
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" "$ctl" docs --man "$DIST/share/man" >/dev/null
rm "$ctl"
rm "$DIST/share/man/persysctl.md" # it is docs/reference/persysctl.md
gzip -9 -n "$DIST"/share/man/man1/*.1

for arch in $ARCHES; do
	export ARCH="$arch" BIN="$DIST/linux_$arch"
	for package in deploy/packages/*.yaml; do
		[[ $package != *-libvirt.yaml || -e "$BIN/persys-agent-libvirt" ]] || continue
		"$tools/nfpm" package --packager deb --config "$package" --target "$DIST" >/dev/null
	done
	# One archive for systems without Debian packages: programs, units, settings, alerts, dashboards.
	tree="persys_${VERSION}_linux_$arch"
	mkdir "$DIST/$tree"
	cp -r "$DIST/linux_$arch" "$DIST/$tree/bin"
	cp -r "$DIST/share" deploy examples sample.env README.md "$DIST/$tree/"
	tar -C "$DIST" --owner=0 --group=0 --numeric-owner --sort=name --mtime="$mtime" -czf "$DIST/$tree.tar.gz" "$tree"
	rm -r "${DIST:?}/$tree"
done

if [[ $IMAGES != none ]]; then
	# For the architecture of this machine only.
	arch="$(go env GOHOSTARCH)"
	# shellcheck disable=SC2086
	BIN="$DIST/linux_$arch" hack/docker-images.sh build $IMAGES
	mkdir -p "$DIST/images"
	for name in $IMAGES; do
		docker save "${REGISTRY:+${REGISTRY%/}/}$name:${VERSION//[^A-Za-z0-9_.-]/-}" | gzip -n >"$DIST/images/${name}_${VERSION}_linux_$arch.tar.gz"
	done
fi

(cd "$DIST" && find . -type f ! -name SHA256SUMS ! -name SHA256SUMS.sig ! -path './share/*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
echo "$DIST: $(wc -l <"$DIST/SHA256SUMS") files, $(du -sh "$DIST" | cut -f1); sha256sum -c SHA256SUMS checks them"
hack/sign.sh "$DIST" || (($? == 3)) # without SIGNING_KEY the release is not signed, and hack/sign.sh says so
((${#left_out[@]} == 0)) || echo "LEFT OUT: ${left_out[*]}: there is no C compiler for it"
