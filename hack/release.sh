#!/usr/bin/env bash
# Builds the files of a release into dist/: the binary persys for linux amd64 and arm64, persysctl for macOS and Windows
# too, packages for Debian, RPM and Alpine, container images, software bills of materials, and checksums.
#
#   VERSION=v1.2.0 hack/release.sh
#
# DIST names another folder, ARCHES="amd64" builds for one architecture only, IMAGES=none builds no
# images. The build with virtual machines, persys-libvirt, needs a C compiler for each architecture (Debian: gcc,
# gcc-aarch64-linux-gnu). Without one, that build and its packages are left out, and the last line names
# them; with STRICT=1 this is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION="${VERSION:-$(hack/version.sh)}"
ARCHES="${ARCHES:-amd64 arm64}"
IMAGES="${IMAGES:-persys-scheduler persys-agent persys-gateway persysctl}"
DIST="${DIST:-$PWD/dist}"
export VERSION DIST
package_version="$(hack/package-version.sh "$VERSION")"
apk_version="$(hack/package-version.sh --apk "$VERSION")"

left_out=()
declare -A compiler=([amd64]=x86_64-linux-gnu-gcc [arm64]=aarch64-linux-gnu-gcc)
builds=0
for arch in $ARCHES; do
	if [[ -z "${compiler[$arch]:-}" ]]; then
		echo "$0: ARCHES=$arch: it must be amd64 or arm64" >&2
		exit 2
	fi
	if command -v "${compiler[$arch]}" >/dev/null; then
		builds=$((builds + 1))
	else
		echo "$0: ${compiler[$arch]} is missing, which persys-libvirt for $arch needs:" >&2
		echo "  apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross   (or ARCHES=amd64)" >&2
		[[ -z "${STRICT:-}" ]] || exit 1
		left_out+=("persys-libvirt for $arch")
	fi
	builds=$((builds + 3))
done

if [[ -n "$(ls -A "$DIST" 2>/dev/null)" && ! -e "$DIST/SHA256SUMS" ]]; then
	echo "$0: DIST=$DIST has other files; name an empty folder" >&2
	exit 2
fi
echo "$VERSION for $ARCHES into $DIST"

# step prints what comes next, its number and the seconds since the start.
steps=$((1 + builds + 1 + $(wc -w <<<"$ARCHES") + 1 + 1))
[[ $IMAGES != none ]] || steps=$((steps - 1))
step_number=0
step() {
	step_number=$((step_number + 1))
	printf '%4d s  step %d of %d: %s\n' "$SECONDS" "$step_number" "$steps" "$*"
}

step "tools for packages and bills of materials"
rm -rf "$DIST"
mkdir -p "$DIST/sbom"
touch "$DIST/SHA256SUMS"
tools="$PWD/.cache/release"
mkdir -p "$tools"
(cd tools/release && GOFLAGS=-mod=readonly GOBIN="$tools" CGO_ENABLED=0 go install tool)

build() { # GOOS GOARCH output package [go build flags]
	local os="$1" arch="$2" out="$3" pkg="$4" name
	shift 4
	name="$(basename "$out")"
	step "$name for $os/$arch"
	GOOS="$os" GOARCH="$arch" go build -trimpath -ldflags "-s -w -X main.version=$VERSION" "$@" -o "$out" "$pkg"
	"$tools/cyclonedx-gomod" bin -json -output "$DIST/sbom/${name%.exe}_${os}_$arch.cdx.json" -version "$VERSION" "$out" 2>/dev/null
}
mtime="@$(git log -1 --format=%ct)"
archive() { # folder file [tar flags]: packs reproducibly
	local folder="$1" file="$2"
	shift 2
	tar -C "$folder" --owner=0 --group=0 --numeric-owner --sort=name --mtime="$mtime" -czf "$file" "$@"
}
for arch in $ARCHES; do
	bin="$DIST/linux_$arch"
	mkdir -p "$bin" "$DIST/darwin_$arch" "$DIST/windows_$arch"
	CGO_ENABLED=0 build linux "$arch" "$bin/persys" ./cmd/persys
	for name in persys-scheduler persys-agent persys-gateway persysctl; do ln -s persys "$bin/$name"; done
	if command -v "${compiler[$arch]}" >/dev/null; then
		CGO_ENABLED=1 CC="${compiler[$arch]}" build linux "$arch" "$bin/persys-libvirt" ./cmd/persys -tags libvirt_dlopen
	fi
	# The command line also for macOS and Windows. Each archive holds one program.
	CGO_ENABLED=0 build darwin "$arch" "$DIST/darwin_$arch/persysctl" ./cmd/persysctl
	archive "$DIST/darwin_$arch" "$DIST/persysctl_${VERSION}_darwin_$arch.tar.gz" persysctl
	CGO_ENABLED=0 build windows "$arch" "$DIST/windows_$arch/persysctl.exe" ./cmd/persysctl
	archive "$DIST/windows_$arch" "$DIST/persysctl_${VERSION}_windows_$arch.tar.gz" persysctl.exe
done

# persysctl prints its completion and manual pages. A build for this machine does it.
step "completion and manual pages"
mkdir -p "$DIST/share/completion"
ctl="$(mktemp)"
CGO_ENABLED=0 go build -trimpath -o "$ctl" ./cmd/persysctl
for shell in bash:persysctl.bash zsh:_persysctl fish:persysctl.fish; do
	"$ctl" completion "${shell%:*}" >"$DIST/share/completion/${shell#*:}"
done
SOURCE_DATE_EPOCH="${mtime#@}" "$ctl" docs --man "$DIST/share/man" >/dev/null
rm "$ctl"
rm "$DIST"/share/man/*.md # they are in docs/reference
gzip -9 -n "$DIST"/share/man/man1/*.1

package() { # packager: packs $NAME
	PKG_VERSION="$package_version"
	[[ $1 != apk ]] || PKG_VERSION="$apk_version"
	export PKG_VERSION
	"$tools/nfpm" package --packager "$1" --config deploy/packages/persys.yaml --target "$DIST" >/dev/null
}
for arch in $ARCHES; do
	step "packages and archive for linux/$arch"
	export ARCH="$arch" BIN="$DIST/linux_$arch" NAME OTHER PROVIDES DESCRIPTION DEPENDS RECOMMENDS_1 RECOMMENDS_2 RECOMMENDS_3
	NAME=persys OTHER=persys-libvirt PROVIDES='' DEPENDS='' RECOMMENDS_1='' RECOMMENDS_2='' RECOMMENDS_3=''
	DESCRIPTION=$'runs containers, Compose stacks and virtual machines on your machines\nScheduler, agent, gateway and command line in one static binary.\nThe package persys-libvirt is the same with virtual machines.'
	for packager in deb rpm apk; do package "$packager"; done
	if [[ -e "$BIN/persys-libvirt" ]]; then
		NAME=persys-libvirt OTHER=persys PROVIDES=persys
		DESCRIPTION=$'runs containers, Compose stacks and virtual machines on your machines\nScheduler, agent, gateway and command line in one binary, whose agent\nloads libvirt when it starts, if it is there.'
		DEPENDS=libc6 RECOMMENDS_1=libvirt-daemon-system RECOMMENDS_2='qemu-system-x86 | qemu-system-arm' RECOMMENDS_3=qemu-utils
		package deb
		DEPENDS=glibc RECOMMENDS_1=libvirt-daemon RECOMMENDS_2=qemu-kvm RECOMMENDS_3=qemu-img
		package rpm
	fi
	# One archive for systems without these packages: programs, units, settings, alerts, dashboards.
	tree="persys_${VERSION}_linux_$arch"
	mkdir "$DIST/$tree"
	cp -a "$DIST/linux_$arch" "$DIST/$tree/bin"
	cp -r "$DIST/share" deploy examples sample.env README.md "$DIST/$tree/"
	archive "$DIST" "$DIST/$tree.tar.gz" "$tree"
	rm -r "${DIST:?}/$tree"
done

if [[ $IMAGES != none ]]; then
	# For the architecture of this machine only. The images share the layer of the binary, so one file holds all.
	arch="$(go env GOHOSTARCH)"
	step "images for linux/$arch"
	# shellcheck disable=SC2086
	BIN="$DIST/linux_$arch" hack/docker-images.sh build $IMAGES
	mkdir -p "$DIST/images"
	refs=()
	for name in $IMAGES; do refs+=("${REGISTRY:+${REGISTRY%/}/}$name:${VERSION//[^A-Za-z0-9_.-]/-}"); done
	docker save "${refs[@]}" | gzip -n >"$DIST/images/persys_${VERSION}_linux_$arch.tar.gz"
fi

step "checksums"
(cd "$DIST" && find . -type f ! -name SHA256SUMS ! -name SHA256SUMS.sig ! -path './share/*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
echo "$DIST: $(wc -l <"$DIST/SHA256SUMS") files, $(du -sh "$DIST" | cut -f1), $SECONDS s; sha256sum -c SHA256SUMS checks them"
hack/sign.sh "$DIST" || (($? == 3)) # without SIGNING_KEY the release is not signed, and hack/sign.sh says so
((${#left_out[@]} == 0)) || echo "LEFT OUT: ${left_out[*]}: there is no C compiler for it"
