package arpsnoop

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// listenARP opens a socket that receives ARP frames on every interface of this machine, also on those that
// are created later, bridges included. It needs CAP_NET_RAW, which an agent that runs virtual machines has
// as root.
func listenARP() (io.ReadCloser, error) {
	const protocol = unix.ETH_P_ARP>>8 | unix.ETH_P_ARP&0xff<<8 // ETH_P_ARP in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("open a socket that receives ARP frames", err)
	}
	return os.NewFile(uintptr(fd), "arp"), nil
}
