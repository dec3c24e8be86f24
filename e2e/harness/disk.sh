# Mounts a new ext4 file system of $3 MiB in the file $1 at the folder $2. Each line of the standard input,
# "freeze" or "thaw", is answered with "done". A frozen file system thaws after $4 seconds in any case. When
# the input ends, the file system thaws and is unmounted.
trap '' INT TERM HUP
truncate -s "${3}M" "$1"
mkfs.ext4 -q -F "$1"
mount -o loop "$1" "$2"
exec 3<"$2"
thaw() { fsfreeze --unfreeze /proc/self/fd/3; }
trap 'thaw 2>/dev/null || true; exec 3<&-; umount --lazy "$2"' EXIT
echo done
limit=()
while true; do
	status=0
	read -r "${limit[@]}" word || status=$?
	case "$status,$word" in
	0,freeze)
		fsfreeze --freeze /proc/self/fd/3
		limit=(-t "$4")
		;;
	0,thaw)
		if [[ ${#limit[@]} -gt 0 ]]; then thaw; fi
		limit=()
		;;
	*)
		if [[ $status -le 128 ]]; then exit; fi # else the limit is over
		thaw
		limit=()
		continue
		;;
	esac
	echo done
done
