package arpsnoop

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

const (
	macA = "52:54:00:00:00:0a"
	macB = "52:54:00:00:00:0b"
)

// arp returns the frame of an ARP request. The functions in change may first modify its bytes.
func arp(change ...func([]byte)) []byte {
	f := []byte{
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 0x0a, 0x08, 0x06,
		0, 1, 0x08, 0, 6, 4, 0, 1,
		0x52, 0x54, 0, 0, 0, 0x0a, 10, 77, 0, 130,
		0, 0, 0, 0, 0, 0, 10, 77, 0, 1,
	}
	for _, c := range change {
		c(f)
	}
	return f
}

func TestReadARPAcceptsOnlyValidFrames(t *testing.T) {
	set := func(at int, to ...byte) func([]byte) { return func(f []byte) { copy(f[at:], to) } }
	for _, c := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"a request", arp(), "10.77.0.130"},
		{"a reply", arp(set(21, 2)), "10.77.0.130"},
		{"an ARP request that is padded to the length of an Ethernet frame", append(arp(), make([]byte, 18)...), "10.77.0.130"},
		{"an ARP probe for an unused address, which has no sender address", arp(set(28, 0, 0, 0, 0)), ""},
		{"a link-local address", arp(set(28, 169, 254, 3, 4)), ""},
		{"a multicast address", arp(set(28, 224, 0, 0, 1)), ""},
		{"an ARP request whose sender MAC differs from the source MAC of the frame", arp(set(6, 2)), ""},
		{"a frame that is not ARP", arp(set(12, 0x08, 0x00)), ""},
		{"an ARP request for hardware that is not Ethernet", arp(set(15, 6)), ""},
		{"an ARP request for a protocol that is not IPv4", arp(set(16, 0x86, 0xdd)), ""},
		{"wrong address length", arp(set(18, 8)), ""},
		{"truncated", arp()[:41], ""},
		{"empty", nil, ""},
	} {
		mac, ip, ok := readARP(c.frame)
		if ok != (c.want != "") || ok && (ip.String() != c.want || mac != macA) {
			t.Errorf("%s: readARP returned MAC %s, IP %s, %t; want the IP %q, or false if that is empty", c.name, mac, ip, ok, c.want)
		}
	}
}

// The snooper keeps an announced address until it expires (forgetHeard), and keeps at most mostHeard addresses
// per interface.
func TestHeardAddressesExpireAndAreBounded(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type said struct {
		after time.Duration
		mac   string
		ip    string
	}
	many := []said{}
	for i := range 20 {
		many = append(many, said{0, macA, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}).String()})
	}
	for _, c := range []struct {
		name  string
		said  []said
		since time.Duration
		want  []string
	}{
		{"no announcement", nil, 0, nil},
		{"one announcement", []said{{0, macA, "10.0.0.1"}}, 0, []string{"10.0.0.1"}},
		{"an announcement of another interface does not count", []said{{0, macB, "10.0.0.1"}}, 0, nil},
		{"two addresses, in the order in which they were first announced", []said{{0, macA, "10.0.0.1"}, {1, macA, "10.0.0.2"}, {2, macA, "10.0.0.1"}}, 0, []string{"10.0.0.1", "10.0.0.2"}},
		{"an address that was announced before the guest's start is left out", []said{{0, macA, "10.0.0.1"}}, time.Second, nil},
		{"an address that was announced before and again after the guest's start counts", []said{{0, macA, "10.0.0.1"}, {time.Minute, macA, "10.0.0.1"}}, time.Second, []string{"10.0.0.1"}},
		{"an address without later announcements stays valid", []said{{0, macA, "10.0.0.1"}, {time.Hour, macB, "10.0.0.2"}}, 0, []string{"10.0.0.1"}},
		{"an address expires after the interface has announced only another address for some minutes", []said{{0, macA, "10.0.0.1"}, {11 * time.Minute, macA, "10.0.0.2"}}, 0, []string{"10.0.0.2"}},
		{"an address that another interface announces later no longer counts", []said{{0, macA, "10.0.0.1"}, {1, macA, "10.0.0.9"}, {2, macB, "10.0.0.9"}}, 0, []string{"10.0.0.1"}},
		{"of more addresses than mostHeard only the first ones are kept", many, 0, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8"}},
	} {
		now := start
		e := New()
		e.now = func() time.Time { return now }
		e.open = func() (io.ReadCloser, error) { return nil, errors.New("not here") }
		_ = e.Want([]string{macA})
		for _, s := range c.said {
			now = start.Add(s.after)
			e.hear(s.mac, netip.MustParseAddr(s.ip))
		}
		if got := e.Of(macA, start.Add(c.since)); !slices.Equal(got, c.want) {
			t.Errorf("%s: Of returned the addresses %v, want %v", c.name, got, c.want)
		}
	}
}

// The snooper opens no socket before the first Want, returns the error of a refused socket only once, and
// leaves no socket open after Close.
func TestTheSocketIsOpenOnlyWhileWanted(t *testing.T) {
	e := New()
	refused := errors.New("not permitted")
	opened := 0
	e.open = func() (io.ReadCloser, error) { opened++; return nil, refused }
	if err := e.Want(nil); err != nil || opened != 0 {
		t.Errorf("before a call of Want with an interface, the error is %v and the socket was opened %d times; want no error and never", err, opened)
	}
	macs := []string{macA}
	if first, second := e.Want(macs), e.Want(macs); !errors.Is(first, refused) || second != nil {
		t.Errorf("two calls of Want with a refused socket returned %v and %v, want only one error", first, second)
	}
	r, w := io.Pipe()
	e.open = func() (io.ReadCloser, error) { return r, nil }
	if err := e.Want(macs); err != nil {
		t.Fatal(err)
	}
	for _, frame := range [][]byte{{1, 2, 3}, arp()} {
		if _, err := w.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	testbed.Until(t, "the snooper learns the address from the ARP frame", func() bool { return slices.Equal(e.Of(macA, time.Time{}), []string{"10.77.0.130"}) })
	e.Close()
	if _, err := w.Write(arp()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after Close a write to the stream of frames returned %v, want io.ErrClosedPipe", err)
	}
	e.open = func() (io.ReadCloser, error) { t.Error("the snooper opens a socket after Close"); return nil, refused }
	_ = e.Want(macs)
}

// An interface for which Want is no longer called is forgotten.
func TestUnwantedInterfacesAreForgotten(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := New()
	e.now = func() time.Time { return now }
	e.open = func() (io.ReadCloser, error) { return nil, errors.New("not here") }
	_ = e.Want([]string{macA, macB})
	e.hear(macA, netip.MustParseAddr("10.0.0.1"))
	e.hear(macB, netip.MustParseAddr("10.0.0.2"))
	now = now.Add(forgetWanted + time.Second)
	_ = e.Want([]string{macB})
	if len(e.wanted) != 1 || len(e.heard) != 1 || len(e.Of(macB, time.Time{})) != 1 {
		t.Errorf("after an hour without Want the snooper still holds the interfaces %v and the addresses %v", e.wanted, e.heard)
	}
}

func TestTheKernelsARPTableIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "arp")
	text := `IP address       HW type     Flags       HW address            Mask     Device
10.0.0.5         0x1         0x2         52:54:00:00:00:0a     *        br0
10.0.0.6         0x1         0x2         52:54:00:00:00:0a     *        br0
10.0.0.7         0x1         0x0         00:00:00:00:00:00     *        br0
169.254.0.7      0x1         0x2         52:54:00:00:00:0b     *        br0
garbage
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := Kernel(file), map[string][]string{macA: {"10.0.0.5", "10.0.0.6"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the kernel's ARP table was read as %v, want %v", got, want)
	}
	if got := Kernel(file + ".none"); len(got) != 0 {
		t.Errorf("without an ARP table Kernel returned %v, want nothing", got)
	}
}

// FuzzFrame checks that readARP returns, for every frame, either nothing or a MAC address and an IP address
// that a guest may have.
func FuzzFrame(f *testing.F) {
	f.Add(arp())
	f.Add(arp()[:20])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		mac, ip, ok := readARP(frame)
		if !ok {
			return
		}
		if hw, err := net.ParseMAC(mac); err != nil || len(hw) != 6 || !ip.Is4() || !ip.IsGlobalUnicast() {
			t.Errorf("readARP accepted MAC %q with IP %s: %v", mac, ip, err)
		}
	})
}
