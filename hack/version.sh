#!/usr/bin/env bash
# Prints the version of the checked-out commit, for make build and make release.
#
# A tagged commit has the version of its tag. Any other commit is a snapshot: the latest tag before it (v0.0.0 if there
# is none), the time of the commit in UTC, and the commit, such as v1.2.0-20261127093000-0123456789ab. So versions of
# snapshots sort by time. A changed work tree adds -dirty.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! commit="$(git rev-parse --short=12 HEAD 2>/dev/null)"; then
	echo dev
	exit
fi
if ! version="$(git describe --tags --exact-match 2>/dev/null)"; then
	base="$(git describe --tags --abbrev=0 2>/dev/null || echo v0.0.0)"
	version="$base-$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d%H%M%S)-$commit"
fi
[[ -z "$(git status --porcelain --untracked-files=no)" ]] || version+=-dirty
echo "$version"
