// Package arpsnoop learns the IPv4 addresses of interfaces on a bridge from their ARP traffic.
//
// If an external DHCP server gives a guest its address, libvirt does not know the address. However, before an
// interface sends its first packet to a neighbour, it broadcasts an ARP request that carries its own address
// (RFC 826), and the bridge delivers the request to this machine too. The kernel's own ARP table contains
// only senders that requested one of this machine's addresses, so it lacks guests on bridges where this
// machine has no address. libvirt 9 can return that table, but fails on newer kernels ("wrong nlmsg len"). So
// this package listens for ARP itself and also reads the kernel's table.
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

// Snooper collects the IPv4 addresses that interfaces announce by ARP (ARP snooping).
type Snooper struct {
	open func() (io.ReadCloser, error) // open returns a stream of ARP frames
	now  func() time.Time

	mu     sync.Mutex
	source io.ReadCloser
	done   chan struct{}
	closed bool
	warned bool
	// wanted holds the MAC addresses of the interfaces to observe, each with the time at which Want was last
	// called for it. Other interfaces are ignored.
	wanted map[string]time.Time
	heard  map[string][]heard // announced IP addresses, by the MAC address of their interface, in the order of the first announcement
}

// heard is an IP address that an interface announced by ARP, with the time of its last announcement.
type heard struct {
	ip   netip.Addr
	last time.Time
}

const (
	// forgetWanted is how long an interface is observed after the last call of Want for it.
	forgetWanted = time.Hour
	// forgetHeard is how long an announced address stays valid after the interface announces another
	// address instead.
	forgetHeard = 10 * time.Minute
	// mostHeard is the maximum number of addresses stored for one interface.
	mostHeard = 8
)

// New returns a snooper that does not listen on the network yet.
func New() *Snooper {
	return &Snooper{open: listenARP, now: time.Now, wanted: map[string]time.Time{}, heard: map[string][]heard{}}
}

// Want starts listening for the interfaces with these MAC addresses. If the socket cannot be opened, only
// the first call returns the error.
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
			return // the socket is bound to no interface, so only Close ends the stream
		}
		if mac, ip, ok := readARP(frame[:n]); ok {
			s.hear(mac, ip)
		}
	}
}

func (s *Snooper) hear(mac string, ip netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// An address belongs to the interface that announced it last: a service address may move between
	// guests.
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

// Of returns the IP addresses that the interface with this MAC address has announced since the given time.
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

// readARP returns the MAC and IP address of the sender of an ARP frame. It ignores probes of whether an
// address is in use, which have no sender address (RFC 5227), and link-local addresses, which are often
// temporary: cloud-init uses one while it looks for its metadata.
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

// Kernel returns the IP addresses in the kernel's neighbour table, by MAC address. path is a file in the
// format of /proc/net/arp.
func Kernel(path string) map[string][]string {
	f, err := os.Open(path)
	if err != nil {
		return nil // this system has no ARP table at that path
	}
	defer f.Close()
	out := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// columns: IP address, HW type, Flags, HW address, Mask, Device; the flag 0x2 marks a complete entry
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
