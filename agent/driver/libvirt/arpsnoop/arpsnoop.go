// Package arpsnoop finds out which addresses interfaces on a bridge have, from what they say there.
//
// Nobody tells which address a guest got from somebody else's DHCP server. But whoever speaks IPv4 on
// an Ethernet says so itself: before its first packet to a neighbour it asks all of them for that one's
// address, and signs with its own (ARP, RFC 826). A bridge hands that to this machine too. The kernel
// keeps only what it was asked itself, so on a bridge where this machine has no address, or where
// nobody talks to it, it knows nothing; and libvirt 9, which can be asked for the kernel's table, fails
// on it under newer kernels ("wrong nlmsg len"). So the driver listens, and looks into the table too.
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

// Snooper hears the addresses that interfaces say they have (ARP snooping).
type Snooper struct {
	open func() (io.ReadCloser, error) // what is read are frames of ARP
	now  func() time.Time

	mu     sync.Mutex
	source io.ReadCloser
	done   chan struct{}
	closed bool
	warned bool
	// wanted are the interfaces that somebody asked for, and when last: the network has others.
	wanted map[string]time.Time
	heard  map[string][]heard // by interface, in the order in which they were first heard
}

// heard is an address that an interface said it has.
type heard struct {
	ip   netip.Addr
	last time.Time
}

const (
	// forgetWanted is how long an interface is listened for that nobody asks for any more.
	forgetWanted = time.Hour
	// forgetHeard is how long an address counts that was not heard again while another was.
	forgetHeard = 10 * time.Minute
	// mostHeard bounds what an interface can make us remember.
	mostHeard = 8
)

// New is a snooper that does not listen yet.
func New() *Snooper {
	return &Snooper{open: listenARP, now: time.Now, wanted: map[string]time.Time{}, heard: map[string][]heard{}}
}

// Want begins to listen for interfaces, by their MAC addresses. The error says that it cannot be, the first time only.
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
			return // closed: nothing else ends a socket that is bound to no interface
		}
		if mac, ip, ok := readARP(frame[:n]); ok {
			s.hear(mac, ip)
		}
	}
}

func (s *Snooper) hear(mac string, ip netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// An address is with whoever claimed it last: a service's may move from guest to guest.
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

// Of are the addresses that an interface said it has since a time.
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

// Close ends it: what was heard is kept, and no more is.
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

// readARP reads who says that it has which address, from an Ethernet frame. Probes for an address that
// nobody has yet come from none (RFC 5227), and link-local ones are often for a moment only, as those
// with which cloud-init looks for its data.
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

// Kernel are the addresses of interfaces in the kernel's table, which has the format of
// /proc/net/arp.
func Kernel(path string) map[string][]string {
	f, err := os.Open(path)
	if err != nil {
		return nil // there is none on this system
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
