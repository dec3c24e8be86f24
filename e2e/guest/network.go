//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// netConfig is the part of network-config version 2 that the tests use.
type netConfig struct {
	Version   int `yaml:"version"`
	Ethernets map[string]struct {
		Match struct {
			MAC string `yaml:"macaddress"`
		} `yaml:"match"`
		DHCP4     bool     `yaml:"dhcp4"`
		Addresses []string `yaml:"addresses"`
		Gateway   string   `yaml:"gateway4"`
	} `yaml:"ethernets"`
}

func network(text string) error {
	if err := up("lo", netip.MustParsePrefix("127.0.0.1/8")); err != nil {
		return err
	}
	if text == "" {
		return nil
	}
	var c netConfig
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for name, e := range c.Ethernets {
		for _, nic := range all {
			if !strings.EqualFold(nic.HardwareAddr.String(), e.Match.MAC) {
				continue
			}
			addresses := e.Addresses
			if e.DHCP4 {
				if err := up(nic.Name, netip.Prefix{}); err != nil {
					return err
				}
				leased, err := dhcp(nic)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				addresses = append(addresses, leased.String())
			}
			for _, a := range addresses {
				p, err := netip.ParsePrefix(a)
				if err != nil {
					return err
				}
				if err := up(nic.Name, p); err != nil {
					return err
				}
				say("address %s on %s", p, nic.HardwareAddr)
				// Send a packet, which makes the address known in the network, as every guest does.
				if conn, err := net.Dial("udp4", net.JoinHostPort(p.Masked().Addr().Next().String(), "9")); err == nil {
					_, _ = conn.Write([]byte("hello"))
					conn.Close()
				}
			}
		}
	}
	return nil
}

type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data [24]byte
}

// up turns an interface on and gives it an IPv4 address, if p is valid.
func up(name string, p netip.Prefix) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	call := func(what uintptr, fill func(*ifreq)) error {
		var r ifreq
		copy(r.name[:], name)
		fill(&r)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), what, uintptr(unsafe.Pointer(&r))); errno != 0 {
			return fmt.Errorf("%s: %w", name, errno)
		}
		return nil
	}
	inet := func(ip []byte) func(*ifreq) {
		return func(r *ifreq) {
			binary.NativeEndian.PutUint16(r.data[:], unix.AF_INET)
			copy(r.data[4:], ip)
		}
	}
	if p.IsValid() {
		ip := p.Addr().As4()
		if err := call(unix.SIOCSIFADDR, inet(ip[:])); err != nil {
			return err
		}
		if err := call(unix.SIOCSIFNETMASK, inet(net.CIDRMask(p.Bits(), 32))); err != nil {
			return err
		}
	}
	return call(unix.SIOCSIFFLAGS, func(r *ifreq) { binary.NativeEndian.PutUint16(r.data[:], unix.IFF_UP|unix.IFF_RUNNING) })
}

// dhcp requests an address (RFC 2131) with the broadcast flag, because the interface has no address yet to
// which a server could answer.
func dhcp(nic net.Interface) (netip.Prefix, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Prefix{}, err
	}
	defer unix.Close(s)
	for _, set := range []func() error{
		func() error { return unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_BROADCAST, 1) },
		func() error { return unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) },
		func() error { return unix.BindToDevice(s, nic.Name) },
		func() error {
			return unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
		},
		func() error { return unix.Bind(s, &unix.SockaddrInet4{Port: 68}) },
	} {
		if err := set(); err != nil {
			return netip.Prefix{}, os.NewSyscallError("dhcp socket", err)
		}
	}
	const (
		discover = 1
		offer    = 2
		request  = 3
		ack      = 5
	)
	xid := uint32(time.Now().UnixNano())
	send := func(kind byte, more ...byte) error {
		m := make([]byte, 240, 300)
		m[0], m[1], m[2] = 1, 1, 6
		binary.BigEndian.PutUint32(m[4:], xid)
		m[10] = 0x80 // the broadcast flag of a DHCP request (RFC 2131)
		copy(m[28:], nic.HardwareAddr)
		copy(m[236:], []byte{0x63, 0x82, 0x53, 0x63})
		m = append(append(append(m, 53, 1, kind), more...), 55, 2, 1, 3, 255)
		return unix.Sendto(s, m, 0, &unix.SockaddrInet4{Port: 67, Addr: [4]byte{255, 255, 255, 255}})
	}
	receive := func(want byte) ([]byte, map[byte][]byte, error) {
		buf := make([]byte, 1500)
		for range 8 {
			n, _, err := unix.Recvfrom(s, buf, 0)
			if err != nil {
				return nil, nil, err
			}
			m := buf[:n]
			if n < 240 || m[0] != 2 || binary.BigEndian.Uint32(m[4:]) != xid {
				continue
			}
			options := map[byte][]byte{}
			for rest := m[240:]; len(rest) > 2 && rest[0] != 255; {
				if rest[0] == 0 {
					rest = rest[1:]
					continue
				}
				end := min(2+int(rest[1]), len(rest))
				options[rest[0]] = bytes.Clone(rest[2:end])
				rest = rest[end:]
			}
			if kind := options[53]; len(kind) == 1 && kind[0] == want {
				return bytes.Clone(m[16:20]), options, nil
			}
		}
		return nil, nil, errors.New("no DHCP answer of the expected type")
	}
	var last error
	for range 20 {
		if last = send(discover); last != nil {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		ip, options, err := receive(offer)
		if last = err; err != nil {
			continue
		}
		more := append([]byte{50, 4}, ip...)
		if server := options[54]; len(server) == 4 {
			more = append(append(more, 54, 4), server...)
		}
		if last = send(request, more...); last != nil {
			continue
		}
		if ip, options, err = receive(ack); err != nil {
			last = err
			continue
		}
		addr, _ := netip.AddrFromSlice(ip)
		ones := 24
		if mask := options[1]; len(mask) == 4 {
			ones, _ = net.IPMask(mask).Size()
		}
		return netip.PrefixFrom(addr, ones), nil
	}
	return netip.Prefix{}, fmt.Errorf("no DHCP server answers: %w", last)
}
