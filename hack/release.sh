#!/usr/bin/env bash
# Builds the files of a release into dist/: the binary persys for linux amd64 and arm64, persysctl for macOS and Windows
# too, packages for Debian, RPM and Alpine, container images, software bills of materials, and checksums.
#
#   VERSION=v1.2.0 hack/release.sh
#
# DIST names another folder, ARCHES="amd64" builds for one architecture only, IMAGES=none builds no
# images. All programs are static, so no C compiler is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION="${VERSION:-$(hack/version.sh)}"
ARCHES="${ARCHES:-amd64 arm64}"
IMAGES="${IMAGES:-persys-scheduler persys-agent persys-gateway persysctl}"
DIST="${DIST:-$PWD/dist}"
export VERSION DIST CGO_ENABLED=0
package_version="$(hack/package-version.sh "$VERSION")"
apk_version="$(hack/package-version.sh --apk "$VERSION")"

builds=0
for arch in $ARCHES; do
	if [[ $arch != amd64 && $arch != arm64 ]]; then
		echo "$0: ARCHES=$arch: it must be amd64 or arm64" >&2
		exit 2
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
(cd tools/release && GOFLAGS=-mod=readonly GOBIN="$tools" go install tool)

build() { # GOOS GOARCH output package
	local os="$1" arch="$2" out="$3" pkg="$4" name
	name="$(basename "$out")"
	step "$name for $os/$arch"
	GOOS="$os" GOARCH="$arch" go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o "$out" "$pkg"
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
	build linux "$arch" "$bin/persys" ./cmd/persys
	for name in persys-scheduler persys-agent persys-gateway persysctl; do ln -s persys "$bin/$name"; done
	# The command line also for macOS and Windows. Each archive holds one program.
	build darwin "$arch" "$DIST/darwin_$arch/persysctl" ./cmd/persysctl
	archive "$DIST/darwin_$arch" "$DIST/persysctl_${VERSION}_darwin_$arch.tar.gz" persysctl
	build windows "$arch" "$DIST/windows_$arch/persysctl.exe" ./cmd/persysctl
	archive "$DIST/windows_$arch" "$DIST/persysctl_${VERSION}_windows_$arch.tar.gz" persysctl.exe
done

# persysctl prints its completion and manual pages. A build for this machine does it.
step "completion and manual pages"
mkdir -p "$DIST/share/completion"
ctl="$(mktemp)"
go build -trimpath -o "$ctl" ./cmd/persysctl
for shell in bash:persysctl.bash zsh:_persysctl fish:persysctl.fish; do
	"$ctl" completion "${shell%:*}" >"$DIST/share/completion/${shell#*:}"
done
SOURCE_DATE_EPOCH="${mtime#@}" "$ctl" docs --man "$DIST/share/man" >/dev/null
rm "$ctl"
rm "$DIST"/share/man/*.md # they are in docs/reference
gzip -9 -n "$DIST"/share/man/man1/*.1

package() { # packager
	PKG_VERSION="$package_version"
	[[ $1 != apk ]] || PKG_VERSION="$apk_version"
	export PKG_VERSION
	"$tools/nfpm" package --packager "$1" --config deploy/packages/persys.yaml --target "$DIST" >/dev/null
}
for arch in $ARCHES; do
	step "packages and archive for linux/$arch"
	export ARCH="$arch" BIN="$DIST/linux_$arch"
	for packager in deb rpm apk; do package "$packager"; done
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
