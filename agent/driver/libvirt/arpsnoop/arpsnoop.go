// Package arpsnoop learns the IPv4 addresses of interfaces on a bridge from their ARP traffic.
//
// If an external DHCP server gives a guest its address, libvirt does not know the address. But before an
// interface sends its first packet to a neighbour, it broadcasts an ARP request that carries its own
// address (RFC 826), and the bridge delivers the request to this machine too. The kernel stores only
// requests for its own addresses, so it knows nothing about bridges on which this machine has no address.
// libvirt 9 can return the kernel's table, but fails under newer kernels ("wrong nlmsg len"). So the driver
// listens for ARP itself and also reads the kernel's table.
package arpsnoop

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Snooper collects the addresses that interfaces announce (ARP snooping).
type Snooper struct {
	open func() (io.ReadCloser, error) // returns a stream of ARP frames
	now  func() time.Time

	mu     sync.Mutex
	source io.ReadCloser
	done   chan struct{}
	closed bool
	warned bool
	// wanted holds the interfaces of interest and when each was last requested. Other interfaces are ignored.
	wanted map[string]time.Time
	heard  map[string][]heard // by MAC address, in the order of the first announcement
}

// heard is an address that an interface announced.
type heard struct {
	ip   netip.Addr
	last time.Time
}

const (
	// forgetWanted is how long an interface is observed after the last request for it.
	forgetWanted = time.Hour
	// forgetHeard is how long an address is valid that is not announced again while another one is.
	forgetHeard = 10 * time.Minute
	// mostHeard bounds the addresses stored per interface.
	mostHeard = 8
)

// New returns a snooper that does not listen yet.
func New() *Snooper {
	return &Snooper{open: listenARP, now: time.Now, wanted: map[string]time.Time{}, heard: map[string][]heard{}}
}

// Want starts listening for interfaces by MAC address. If listening is impossible, only the first call returns an error.
func (s *Snooper) Want(macs []string) error {
	if len(macs) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, m := range macs {
		s.wanted[m] = now
	}
	for m, at := range s.wanted {
		if now.Sub(at) > forgetWanted {
			delete(s.wanted, m)
			delete(s.heard, m)
		}
	}
	if s.source != nil || s.closed {
		return nil
	}
	source, err := s.open()
	if err != nil && s.warned {
		return nil
	}
	if err != nil {
		s.warned = true
		return err
	}
	s.source, s.done = source, make(chan struct{})
	go s.listen(source, s.done)
	return nil
}

func (s *Snooper) listen(source io.Reader, done chan struct{}) {
	defer close(done)
	frame := make([]byte, 1600)
	for {
		n, err := source.Read(frame)
		if err != nil {
			return // closed: a socket bound to no interface ends in no other way
		}
		if mac, ip, ok := readARP(frame[:n]); ok {
			s.hear(mac, ip)
		}
	}
}

func (s *Snooper) hear(mac string, ip netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The last interface to announce an address has it: a service address may move between guests.
	for other, all := range s.heard {
		if other != mac {
			s.heard[other] = slices.DeleteFunc(all, func(h heard) bool { return h.ip == ip })
		}
	}
	if _, ok := s.wanted[mac]; !ok {
		return
	}
	now := s.now()
	all := slices.DeleteFunc(s.heard[mac], func(h heard) bool { return h.ip != ip && now.Sub(h.last) > forgetHeard })
	if i := slices.IndexFunc(all, func(h heard) bool { return h.ip == ip }); i >= 0 {
		all[i].last = now
	} else if len(all) < mostHeard {
		all = append(all, heard{ip, now})
	}
	s.heard[mac] = all
}

// Of returns the addresses that an interface has announced since a time.
func (s *Snooper) Of(mac string, since time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, h := range s.heard[mac] {
		if !h.last.Before(since) {
			out = append(out, h.ip.String())
		}
	}
	return out
}

// Close stops listening. The collected addresses stay available.
func (s *Snooper) Close() {
	s.mu.Lock()
	source, done := s.source, s.done
	s.closed = true
	s.mu.Unlock()
	if source != nil {
		_ = source.Close()
		<-done
	}
}

// readARP returns the sender of an ARP frame and its address. It ignores probes for an unused address,
// which have no sender address (RFC 5227), and link-local addresses, which are often temporary:
// cloud-init uses one while it looks for its data.
func readARP(frame []byte) (mac string, ip netip.Addr, ok bool) {
	const head, length = 14, 28
	if len(frame) < head+length {
		return "", ip, false
	}
	p := frame[head:]
	if binary.BigEndian.Uint16(frame[12:]) != 0x0806 || binary.BigEndian.Uint16(p) != 1 || binary.BigEndian.Uint16(p[2:]) != 0x0800 ||
		p[4] != 6 || p[5] != 4 || !bytes.Equal(frame[6:12], p[8:14]) {
		return "", ip, false
	}
	ip = netip.AddrFrom4([4]byte(p[14:18]))
	return net.HardwareAddr(p[8:14]).String(), ip, ip.IsGlobalUnicast()
}

// Kernel returns the addresses of interfaces in the kernel's neighbour table, a file in the format of
// /proc/net/arp.
func Kernel(path string) map[string][]string {
	f, err := os.Open(path)
	if err != nil {
		return nil // this system has no such table
	}
	defer f.Close()
	out := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// IP address, HW type, Flags, HW address, Mask, Device
		const complete = "0x2"
		w := strings.Fields(lines.Text())
		if len(w) < 6 || w[2] != complete {
			continue
		}
		if ip, err := netip.ParseAddr(w[0]); err == nil && ip.IsGlobalUnicast() {
			out[w[3]] = append(out[w[3]], w[0])
		}
	}
	return out
}
