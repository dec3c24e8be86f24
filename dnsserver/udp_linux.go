//go:build linux && (amd64 || arm64)

package dnsserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharesPort means that several sockets may listen on one address, and that the kernel distributes the
// clients among them.
const sharesPort = true

// controlSize is the space for the control message with the destination address of a packet, in
// bytes.
const controlSize = 64

func controlUDP(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); cerr != nil {
		return cerr
	}
	return err
}

// socketBuffer is the requested size of the socket buffers in bytes, to absorb bursts of queries. The kernel
// may grant less.
const socketBuffer = 4 << 20

// prepareUDP sets the buffers of a socket. On a socket that listens on all addresses it also
// requests the destination address of each packet, because an answer must be sent from that address.
func prepareUDP(conn *net.UDPConn) error {
	// Ignore errors: with the system's default buffers the server works too, but it loses packets at a lower query
	// rate.
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
	if !conn.LocalAddr().(*net.UDPAddr).IP.IsUnspecified() {
		return nil
	}
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := rc.Control(func(fd uintptr) {
		family, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		switch {
		case err != nil:
			serr = err
		case family == unix.AF_INET6:
			serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		default:
			serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}
	}); err != nil {
		return err
	}
	return serr
}

// replyControl turns the control message of a received packet into the control message of its
// answer: the same source address, and any interface. Link-local addresses keep their interface.
func replyControl(control []byte) {
	const header = unix.SizeofCmsghdr
	if len(control) < header {
		return
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	data := control[header:]
	switch {
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		binary.NativeEndian.PutUint32(data, 0)
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		if a := netip.AddrFrom16([16]byte(data[:16])); !a.IsLinkLocalUnicast() || a.Is4In6() {
			binary.NativeEndian.PutUint32(data[16:], 0)
		}
	}
}

// batch is the maximum number of packets that one system call receives or sends.
const batch = 32

// mmsghdr is struct mmsghdr of recvmmsg(2) and sendmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// packets holds the buffers for the packets of one socket. The kernel writes into the buffers through pointers in the
// headers. So the buffers are never reallocated, and their sizes must equal the sizes in the headers.
type packets struct {
	in, out   [batch]mmsghdr
	inVec     [batch]unix.Iovec
	outVec    [batch]unix.Iovec
	from      [batch]unix.RawSockaddrInet6
	control   [batch][controlSize]byte
	queries   [batch][maxQuery]byte
	answers   [batch][maxUDP + 64]byte
	answering int
}

// serveUDP answers the queries that a socket receives until the socket is closed. Under load it receives and
// sends many packets per system call.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var r reader
	p := new(packets)
	failures := 0
	for {
		n, err := p.receive(rc)
		if err != nil {
			if failures++; errors.Is(err, net.ErrClosed) || failures > maxFailures {
				return err
			}
			continue
		}
		failures = 0
		began := time.Now()
		p.answering = 0
		for i := range n {
			from, ok := p.client(i)
			if !ok {
				continue
			}
			msg := p.queries[i][:p.in[i].n]
			control := p.control[i][:p.in[i].hdr.Controllen]
			reply, foreign := s.respond(p.answers[i][:0], msg, false, from.Addr(), began, &r)
			replyControl(control)
			switch {
			case foreign:
				s.forwardPacket(ctx, conn, msg, control, from)
			case len(reply) > 0:
				p.queue(i, reply)
			}
		}
		if p.answering == 0 {
			continue
		}
		if err := p.send(rc); errors.Is(err, net.ErrClosed) {
			return err
		}
		s.metrics.observe(time.Since(began), p.answering)
	}
}

// receive waits for packets, receives as many packets as fit into the buffers, and returns
// their number.
func (p *packets) receive(rc syscall.RawConn) (int, error) {
	for i := range p.in {
		p.inVec[i].Base = &p.queries[i][0]
		p.inVec[i].SetLen(maxQuery)
		h := &p.in[i].hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&p.from[i])), unix.SizeofSockaddrInet6
		h.Iov, h.Iovlen = &p.inVec[i], 1
		h.Control, h.Controllen = &p.control[i][0], controlSize
		h.Flags = 0
	}
	var n uintptr
	var errno syscall.Errno
	err := rc.Read(func(fd uintptr) bool {
		n, _, errno = unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&p.in[0])), batch, unix.MSG_DONTWAIT, 0, 0)
		return errno != unix.EAGAIN
	})
	if err == nil && errno != 0 {
		err = fmt.Errorf("recvmmsg: %w", errno)
	}
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// queue adds reply to the answers to send; it goes to the client of packet i.
func (p *packets) queue(i int, reply []byte) {
	at := p.answering
	p.answering++
	p.outVec[at].Base = &reply[0]
	p.outVec[at].SetLen(len(reply))
	h := &p.out[at].hdr
	*h = p.in[i].hdr
	h.Iov, h.Iovlen = &p.outVec[at], 1
	if h.Flags = 0; h.Controllen == 0 {
		h.Control = nil
	}
}

// send sends the queued answers. An answer that cannot be sent is dropped.
func (p *packets) send(rc syscall.RawConn) error {
	for at := 0; at < p.answering; {
		var n uintptr
		var errno syscall.Errno
		err := rc.Write(func(fd uintptr) bool {
			n, _, errno = unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&p.out[at])), uintptr(p.answering-at), unix.MSG_DONTWAIT, 0, 0)
			return errno != unix.EAGAIN
		})
		switch {
		case err != nil:
			return err
		case errno == unix.EINTR:
		case errno != 0, n == 0:
			at++
		default:
			at += int(n)
		}
	}
	return nil
}

// client returns the source address of packet i.
func (p *packets) client(i int) (netip.AddrPort, bool) {
	sa := &p.from[i]
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:])
	switch sa.Family {
	case unix.AF_INET:
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), port), true
	case unix.AF_INET6:
		a := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.Scope_id != 0 && a.IsLinkLocalUnicast() && a.Is6() {
			a = a.WithZone(fmt.Sprint(sa.Scope_id))
		}
		return netip.AddrPortFrom(a, port), true
	}
	return netip.AddrPort{}, false
}
