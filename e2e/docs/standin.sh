#!/bin/bash
# Replaces apt-get, systemctl and journalctl on a machine without an init system. $MACHINE is its folder.
# The three commands unpack the real packages and start the commands of the real units, as root.
set -euo pipefail
units="$MACHINE/units" log="$MACHINE/log"

running() { [[ -e "$log/$1.pid" ]] && kill -0 "$(cat "$log/$1.pid")" 2>/dev/null; }

start() {
	local unit="$1" file="$units/$1.service"
	running "$unit" && return
	[[ -e $file ]] || { echo "Unit $unit.service not found." >&2; exit 5; }
	# Read the unit: its environment files, its environment, its command.
	set -a
	while IFS='=' read -r key value; do
		case "$key" in
		EnvironmentFile) . "${value#-}" ;;
		Environment) eval "$value" ;;
		esac
	done <"$file"
	set +a
	local command
	command="$(sed -n 's/^ExecStart=//p' "$file")"
	# shellcheck disable=SC2086
	setsid "$MACHINE/bin/$(basename "${command%% *}")" $(cut -s -d' ' -f2- <<<"$command") </dev/null >>"$log/$unit.log" 2>&1 &
	echo $! >"$log/$unit.pid"
}

stop() {
	running "$1" || return 0
	local pid
	pid="$(cat "$log/$1.pid")"
	kill "$pid"
	for ((i = 0; i < 300; i++)); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -9 "$pid"
}

case "$(basename "$0")" in
apt-get)
	[[ "$1" == install ]] || { echo "stand-in: apt-get $*" >&2; exit 2; }
	shift
	for deb in "$@"; do
		[[ $deb == -* ]] && continue
		[[ $deb == */*.deb && -e $deb ]] || { echo "stand-in: there is no package $deb" >&2; exit 2; }
		tree="$(mktemp -d)"
		dpkg-deb -x "$deb" "$tree"
		cp -d --remove-destination "$tree"/usr/bin/* "$MACHINE/bin/"
		if [[ -d "$tree/etc/persys" ]]; then cp -n "$tree"/etc/persys/* /etc/persys/; fi
		if [[ -d "$tree/lib/systemd/system" ]]; then cp "$tree"/lib/systemd/system/* "$units/"; fi
		rm -r "$tree"
	done
	;;
systemctl)
	verb="$1"
	shift
	names=()
	for a in "$@"; do [[ $a == -* ]] || names+=("${a%.service}"); done
	for unit in "${names[@]}"; do
		case "$verb" in
		start) start "$unit" ;;
		enable) [[ " $* " != *" --now "* ]] || start "$unit" ;;
		stop) stop "$unit" ;;
		disable) stop "$unit" ;;
		restart)
			stop "$unit"
			start "$unit"
			;;
		show) ;; # programs report no status here
		is-active | status) if running "$unit"; then echo active; else echo inactive && exit 3; fi ;;
		*)
			echo "stand-in: systemctl $verb" >&2
			exit 2
			;;
		esac
	done
	;;
journalctl)
	while (($#)); do
		case "$1" in
		-u)
			cat "$log/${2%.service}.log"
			shift
			;;
		-n | --lines) shift ;;
		esac
		shift
	done
	;;
esac
