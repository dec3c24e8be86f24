#!/usr/bin/env bash
# Prints a version as Debian and RPM write it, or, with --apk, as Alpine does.
#
#   hack/package-version.sh [--apk] VERSION
#
# A release candidate sorts before its release (v1.0.0-rc1 before v1.0.0), and a snapshot after its tag and by time
# (v1.0.0, v1.0.0-20261127093000-0123456789ab).
set -euo pipefail
apk=
if [[ "${1:-}" == --apk ]]; then
	apk=1
	shift
fi
[[ "${1:-}" =~ ^v?([0-9]+(\.[0-9]+)*)(-(alpha|beta|rc|pre)\.?([0-9]*))?(-(.*))?$ ]] || {
	echo "$0: VERSION=${1:-}: it must begin with numbers, such as v1.2.0" >&2
	exit 2
}
number="${BASH_REMATCH[1]}" stage="${BASH_REMATCH[4]}" count="${BASH_REMATCH[5]}" more="${BASH_REMATCH[7]}"
if [[ -z $apk ]]; then
	echo "$number${stage:+~$stage$count}${more:+"+${more//-/+}"}"
else
	# Alpine's versions allow only numbers after words such as _git. The time of a snapshot is a number, but the commit
	# hash is not, so it is left out.
	time="${more%%[!0-9]*}"
	echo "$number${stage:+_$stage$count}${more:+_git$time}"
fi
