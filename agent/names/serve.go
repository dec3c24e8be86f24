package names

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/workload"
)

const (
	port = 53
	// ioLimit is the time limit for a client to send a query over TCP, and to take its answer.
	ioLimit = 2 * time.Second
	// maxTCP is the maximum number of queries on one TCP connection.
	maxTCP = 128
)

// listener holds the UDP and TCP sockets at the address of this machine's bridge of one network.
type listener struct {
	bridge   workload.NetworkBridge
	udp, tcp *dns.Server
}

// Listen makes the resolver listen at the addresses of bridges, and nowhere else. It returns the sorted ids
// of the networks on which it listens, and the reasons why it does not listen on others.
func (r *Resolver) Listen(bridges []workload.NetworkBridge) (works []uint32, problems []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil
	}
	if len(r.listening) == 0 && len(bridges) > 0 {
		r.since = time.Now()
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	for id, l := range r.listening {
		if !slices.Contains(bridges, l.bridge) {
			l.close()
			delete(r.listening, id)
		}
	}
	for _, b := range bridges {
		if r.listening[b.Network] == nil {
			l, err := r.open(b)
			if err != nil {
				problems = append(problems, fmt.Sprintf("names on network %d: %v: if another program has that port, make it listen at other addresses only", b.Network, err))
				continue
			}
			r.listening[b.Network] = l
		}
		works = append(works, b.Network)
	}
	slices.Sort(works)
	return works, problems
}

// Close closes all sockets. After that Listen opens none.
func (r *Resolver) Close() {
	r.Listen(nil)
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

// open opens the UDP and TCP sockets at the address of a bridge. The sockets work even after the container
// engine has made the bridge anew.
func (r *Resolver) open(b workload.NetworkBridge) (*listener, error) {
	at := netip.AddrPortFrom(b.Address, port).String()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return cmp.Or(err, set)
	}}
	packets, err := lc.ListenPacket(context.Background(), "udp4", at)
	if err != nil {
		return nil, err
	}
	stream, err := lc.Listen(context.Background(), "tcp4", at)
	if err != nil {
		_ = packets.Close()
		return nil, err
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { r.serve(b, w, q) })
	l := &listener{
		bridge: b,
		udp:    &dns.Server{PacketConn: packets, Handler: handler},
		tcp:    &dns.Server{Listener: stream, Handler: handler, ReadTimeout: ioLimit, WriteTimeout: ioLimit, MaxTCPQueries: maxTCP},
	}
	for _, s := range []*dns.Server{l.udp, l.tcp} {
		go func() {
			// ActivateAndServe serves queries and returns when the socket is closed.
			if err := s.ActivateAndServe(); err != nil {
				r.log.Debug("the DNS resolver stopped listening on a network", "network", b.Network, "error", err)
			}
		}()
	}
	return l, nil
}

// close closes the sockets, which ends their goroutines.
func (l *listener) close() {
	_ = l.udp.PacketConn.Close()
	_ = l.tcp.Listener.Close()
}

// serve answers one query. It answers only containers on the bridge, because other machines may have routes
// to the bridge's address.
func (r *Resolver) serve(b workload.NetworkBridge, w dns.ResponseWriter, q *dns.Msg) {
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	from, err := netip.ParseAddrPort(w.RemoteAddr().String())
	if err != nil || !b.Slice.Contains(from.Addr().Unmap()) || q.Response {
		return
	}
	if err := w.WriteMsg(r.respond(q, r.machine.NetworksAt(from.Addr().Unmap()), tcp)); err != nil {
		r.log.Debug("could not send the answer to a DNS query", "client", from.Addr(), "error", err)
	}
}

// respond returns the answer to a query of a container that is on the given networks.
func (r *Resolver) respond(q *dns.Msg, networks []uint32, tcp bool) *dns.Msg {
	reply := new(dns.Msg)
	reply.SetReply(q)
	reply.RecursionAvailable = true
	v := r.view.Load()
	switch {
	case q.Opcode != dns.OpcodeQuery:
		reply.Rcode = dns.RcodeNotImplemented
		return reply
	case len(q.Question) != 1:
		reply.Rcode = dns.RcodeFormatError
		return reply
	case q.Question[0].Qclass != dns.ClassINET:
		reply.Rcode = dns.RcodeRefused
		return reply
	}
	known := v != nil
	if !known {
		v = newView(nil)
	}
	out := v.answer(q.Question[0], networks, r.machine.Serves)
	if out.foreign {
		if answer := r.upstream.ask(q, tcp); answer != nil {
			return answer
		}
		reply.Rcode = dns.RcodeServerFailure
		if out.ours {
			reply.Rcode = dns.RcodeNameError
		}
		return reply
	}
	if out.rcode == dns.RcodeNameError && !known {
		out.rcode = dns.RcodeServerFailure // no names have arrived from the schedulers yet
	}
	if n := uint32(len(out.answer)); n > 1 { // rotate the records, because clients use the first one
		first := r.turn.Add(1) % n
		out.answer = slices.Concat(out.answer[first:], out.answer[:first])
	}
	reply.Authoritative, reply.Rcode, reply.Answer, reply.Extra = true, out.rcode, out.answer, out.extra
	size := dns.MinMsgSize
	if o := q.IsEdns0(); o != nil {
		reply.SetEdns0(maxUDP, false)
		size = int(min(max(o.UDPSize(), dns.MinMsgSize), maxUDP))
	}
	if tcp {
		size = dns.MaxMsgSize
	}
	reply.Truncate(size)
	return reply
}

// maxUDP is the maximum size of an answer over UDP, in bytes.
const maxUDP = 1232
