#!/usr/bin/env bash
# Signs the checksums of a release with an Ed25519 key.
#
#   SIGNING_KEY=key.pem hack/sign.sh DIST
#
# Make a key once (openssl genpkey -algorithm ed25519 -out key.pem), store it outside of the repository and of the
# build machine's disk, and publish its public part: openssl pkey -in key.pem -pubout. To check a release:
#   openssl pkeyutl -verify -pubin -inkey persys.pub -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig
#   sha256sum -c SHA256SUMS
set -euo pipefail
dist="${1:?usage: SIGNING_KEY=key.pem hack/sign.sh DIST}"
if [[ -z "${SIGNING_KEY:-}" ]]; then
	echo "NOT SIGNED: SIGNING_KEY names no key: nobody can know who made $dist/SHA256SUMS" >&2
	exit 3
fi
signature="$dist/SHA256SUMS.sig"
rm -f "$signature"
openssl pkeyutl -sign -inkey "$SIGNING_KEY" -rawin -in "$dist/SHA256SUMS" -out "$signature.part"
# Verify the signature here, so that a wrong kind of key or a damaged file is noticed before the release.
openssl pkey -in "$SIGNING_KEY" -pubout |
	openssl pkeyutl -verify -pubin -inkey /dev/stdin -rawin -in "$dist/SHA256SUMS" -sigfile "$signature.part" >/dev/null
mv "$signature.part" "$signature"
echo "$signature"
