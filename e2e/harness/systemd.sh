# Prepares the files of a machine below $1 and becomes its systemd. The caller has unshared the mount
# namespace.
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
cd root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs tmpfs run
touch run/docker.sock
mount --bind /var/run/docker.sock run/docker.sock

# Remove all units that would start by themselves: a test starts the units that it needs. No unit may
# change mounts, kernel settings or devices.
rm -rf lib/systemd/system/*.wants etc/systemd/system/* lib/systemd/system-generators etc/fstab
printf '[Unit]\n' | tee etc/systemd/system/sysinit.target etc/systemd/system/basic.target etc/systemd/system/multi-user.target \
	etc/systemd/system/network-online.target etc/systemd/system/idle.target >/dev/null
mkdir -p etc/systemd/system/service.d
printf '[Service]\nStandardOutput=append:/var/log/services.log\nStandardError=inherit\n' >etc/systemd/system/service.d/log.conf
: >etc/machine-id

exec chroot . /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	/lib/systemd/systemd --system --unit=idle.target --show-status=0 --log-target=console
