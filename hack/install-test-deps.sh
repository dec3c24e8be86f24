#!/usr/bin/env bash
# Installs the programs that builds and tests need from Debian's packages, unless they are installed,
# and prints each with the reason. It needs root or sudo only if a program is missing.
set -euo pipefail

if ! command -v go >/dev/null 2>&1; then
	# Debian's Go is older than the version in go.mod.
	echo "$0: go is missing: install the version that go.mod names (https://go.dev/dl)" >&2
	exit 1
fi

missing=()
need() { # command package why
	if ! command -v "$1" >/dev/null 2>&1 && [[ ! -x "/usr/sbin/$1" ]]; then
		echo "$1 is missing: installing $2 ($3)"
		missing+=("$2")
	fi
}
need gcc gcc "the race detector needs cgo"
need protoc protobuf-compiler "generated code is checked against its source"
if [[ ! -e /usr/include/google/protobuf/timestamp.proto ]]; then
	echo "protoc's own .proto files are missing: installing libprotobuf-dev (the contracts import them)"
	missing+=(libprotobuf-dev)
fi
need git git "the version of a build"
need dig dnsutils "the DNS server is tested with it too"
need promtool prometheus "the alert rules are tested with it"
need etcd etcd-server "the peer of benchmarks, and the tests of the mirror"
need docker-compose docker-compose "Compose stacks run with this command too"
need ip iproute2 "tests use network namespaces"
need curl curl "the documentation uses it"
need mkfs.ext4 e2fsprogs "tests freeze a file system of their own"
need fsfreeze util-linux "the same"
need iptables iptables "tests cut the network between replicas"
need chromium chromium "the web console is tested in a real browser"
need tsc node-typescript "the console's modules are type-checked and formatted with it"
need node nodejs "the formatter of the console's modules runs on it"
need libvirtd libvirt-daemon-system "tests of virtual machines start a libvirt of their own"
need virsh libvirt-clients "tests of virtual machines check libvirt with it"
need qemu-system-x86_64 qemu-system-x86 "virtual machines are emulated where KVM does not work"
need qemu-img qemu-utils "disks of virtual machines"
need dnsmasq dnsmasq-base "virtual machines get addresses from the network of libvirt"
need systemctl systemd "tests of the units start a systemd of their own"
need grub-mkimage grub-common "the test guest boots from its disk"
if [[ ! -e /usr/lib/grub/i386-pc/boot.img ]]; then
	echo "GRUB's boot sector is missing: installing grub-pc-bin (the same; the boot of this machine is not changed)"
	missing+=(grub-pc-bin)
fi
if [[ ! -e /usr/share/seabios/bios-256k.bin ]]; then
	echo "SeaBIOS is missing: installing seabios (the BIOS of virtual machines)"
	missing+=(seabios)
fi
if [[ ! -e /usr/lib/ipxe/qemu/efi-virtio.rom ]]; then
	echo "network boot ROMs are missing: installing ipxe-qemu (the network cards of QEMU load them)"
	missing+=(ipxe-qemu)
fi
# The kernel of the test guest is Debian's, unpacked and not installed.
kernel="$(dirname "$0")/../.cache/cloud-kernel"
need_kernel=0
if ! compgen -G "$kernel/boot/vmlinuz-*" >/dev/null && [[ "$(uname -m)" == x86_64 ]] && command -v apt-get >/dev/null 2>&1; then
	echo "a kernel for test guests is missing: unpacking linux-image-cloud-amd64 into .cache (nothing is installed)"
	need_kernel=1
fi
fetch_kernel() {
	((need_kernel)) || return 0
	local tmp package
	tmp="$(mktemp -d)"
	package="$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')"
	if [[ -z "$package" ]]; then
		echo "$0: Debian's package lists name no kernel for linux-image-cloud-amd64" >&2
		return 1
	fi
	(cd "$tmp" && apt-get download -qq "$package" 2>/dev/null)
	dpkg -x "$tmp"/*.deb "$tmp/x"
	mkdir -p "$kernel/boot" "$kernel/modules"
	# The modules that e2e/guest loads.
	find "$tmp/x/lib/modules" \( -path '*/virtio/*' -o -name 'virtio_blk.ko' -o -name '*failover.ko' -o -name 'virtio_net.ko' \
		-o -name 'isofs.ko' -o -name 'cdrom.ko' -o -name 'evdev.ko' -o -name 'button.ko' -o -name 'pvpanic*.ko' \) -name '*.ko' -exec cp {} "$kernel/modules/" \;
	cp "$tmp"/x/boot/vmlinuz-* "$kernel/boot/"
	rm -rf "$tmp"
}
if ! command -v docker >/dev/null 2>&1; then
	echo "docker is missing: installing docker.io (the agent's tests run real containers)"
	missing+=(docker.io)
fi
# A shell for test containers, because a registry may be unreachable.
if [[ ! -x /bin/busybox ]] || ldd /bin/busybox >/dev/null 2>&1; then
	echo "a static busybox is missing: installing busybox-static (test containers are built from it)"
	missing+=(busybox-static)
fi
if ((${#missing[@]} == 0)); then
	fetch_kernel
	exit 0
fi

as_root=()
if ((EUID != 0)); then
	if ! command -v sudo >/dev/null 2>&1; then
		echo "$0: run this as root, or install yourself: ${missing[*]}" >&2
		exit 1
	fi
	as_root=(sudo)
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "$0: this machine has no apt-get; install yourself: ${missing[*]}" >&2
	exit 1
fi

# Packages must not start services: tests start the ones that they need, on free ports. The Docker
# engine is started by .ci/run where no init system does so.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy && ! -d /run/systemd/system ]]; then
	printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
	"${as_root[@]}" chmod +x "$policy"
	trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
"${as_root[@]}" apt-get update -qq
install
echo "installed: ${missing[*]}"
fetch_kernel
if [[ " ${missing[*]} " == *" etcd-server "* && -d /run/systemd/system ]]; then
	# Debian starts etcd at its installation, on port 2379, the default address of the mirror.
	"${as_root[@]}" systemctl disable --now etcd >/dev/null 2>&1 || true
fi
if [[ " ${missing[*]} " == *" prometheus "* && -d /run/systemd/system ]]; then
	"${as_root[@]}" systemctl disable --now prometheus prometheus-node-exporter >/dev/null 2>&1 || true
fi
if [[ " ${missing[*]} " == *" libvirt-daemon-system "* && -d /run/systemd/system ]]; then
	# The tests start a libvirt daemon of their own.
	"${as_root[@]}" systemctl disable --now libvirtd libvirtd.socket libvirtd-ro.socket virtlogd virtlogd.socket >/dev/null 2>&1 || true
fi
