package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// The load generator is the same for both servers. It uses little CPU time: questions are packed in advance,
// and one system call sends many packets.
const (
	dnsClients = 16 // number of sockets
	dnsWindow  = 32 // number of open questions per socket at the peak
	dnsLost    = 250 * time.Millisecond
)

// packQuestions returns questions in the packed form in which resolvers send them.
func packQuestions(qtype uint16, name func(int) string) ([][]byte, error) {
	const n = 8192
	out := make([][]byte, n)
	for i := range out {
		// The factor 7919 has no common divisor with the number of names, so the questions cover all names
		// of the zone.
		m := new(dns.Msg).SetQuestion(name(i*7919%dnsWorkloads), qtype)
		m.RecursionDesired = false
		m.SetEdns0(1232, false)
		b, err := m.Pack()
		if err != nil {
			return nil, err
		}
		out[i] = b
	}
	return out, nil
}

// isAnswer reports whether a packet is a response without error that has records.
func isAnswer(b []byte) bool {
	return len(b) > 12 && b[2]&0x80 != 0 && b[3]&15 == 0 && binary.BigEndian.Uint16(b[6:]) > 0
}

// client is one socket of the generator.
type client struct {
	conn    *net.UDPConn
	pc      *ipv4.PacketConn
	out, in []ipv4.Message
	asked   [][]byte
	next    int
}

func newClient(addr string, questions [][]byte, nth int) (*client, error) {
	c, err := net.Dial("udp4", addr)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UDPConn)
	// Use a large receive buffer, so that no answer is lost while the generator is slow to read.
	_ = conn.SetReadBuffer(4 << 20)
	cl := &client{conn: conn, pc: ipv4.NewPacketConn(conn), asked: questions, next: nth * 509}
	for range dnsWindow {
		cl.out = append(cl.out, ipv4.Message{Buffers: make([][]byte, 1)})
		cl.in = append(cl.in, ipv4.Message{Buffers: [][]byte{make([]byte, 1500)}})
	}
	return cl, nil
}

func (c *client) send(n int) error {
	for i := range n {
		c.out[i].Buffers[0] = c.asked[c.next%len(c.asked)]
		c.next++
	}
	for sent := 0; sent < n; {
		k, err := c.pc.WriteBatch(c.out[sent:n], 0)
		if err != nil {
			return err
		}
		sent += k
	}
	return nil
}

// peak measures for the time d how many good answers per second a server gives, with a fixed number of
// unanswered questions at any time. It also returns how many questions were not answered.
func peak(ctx context.Context, addr string, questions [][]byte, d time.Duration) (rate float64, lost int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var measuring atomic.Bool
	var good, gone atomic.Int64
	errs := make(chan error, dnsClients)
	var wg sync.WaitGroup
	for i := range dnsClients {
		c, err := newClient(addr, questions, i)
		if err != nil {
			cancel()
			wg.Wait()
			return 0, 0, err
		}
		wg.Go(func() {
			defer c.conn.Close()
			if err := c.closedLoop(ctx, &measuring, &good, &gone); err != nil {
				errs <- err
			}
		})
	}
	wait(ctx, d/4)
	measuring.Store(true)
	began := time.Now()
	wait(ctx, d)
	measuring.Store(false)
	took := time.Since(began)
	err = ctx.Err()
	cancel()
	wg.Wait()
	select {
	case err = <-errs:
	default:
	}
	return float64(good.Load()) / took.Seconds(), gone.Load(), err
}

func (c *client) closedLoop(ctx context.Context, measuring *atomic.Bool, good, gone *atomic.Int64) error {
	inflight := 0
	for ctx.Err() == nil {
		if err := c.send(dnsWindow - inflight); err != nil {
			return err
		}
		inflight = dnsWindow
		if err := c.conn.SetReadDeadline(time.Now().Add(dnsLost)); err != nil {
			return err
		}
		n, err := c.pc.ReadBatch(c.in, 0)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			gone.Add(int64(inflight))
			inflight = 0
			continue
		case err != nil:
			return err
		}
		for i := range n {
			if !isAnswer(c.in[i].Buffers[0][:c.in[i].N]) {
				return fmt.Errorf("the server %s sent %x, which is not an answer with records", c.conn.RemoteAddr(), c.in[i].Buffers[0][:c.in[i].N])
			}
		}
		if measuring.Load() {
			good.Add(int64(n))
		}
		inflight = max(0, inflight-n)
	}
	return nil
}

// paced sends rate questions per second for the time d, at even intervals and without waiting for answers. It
// returns the delays of the answers, with dnsLost as the delay of a question that got no answer.
func paced(ctx context.Context, addr string, questions [][]byte, rate float64, d time.Duration) (tail, error) {
	const clients = 4
	// Use at most half of the CPUs, so that the servers do not wait for a CPU.
	threads := min(max(1, runtime.NumCPU()/2), clients)
	// Each sending thread sleeps in the kernel, for which Go reserves one of its GOMAXPROCS processors. So raise
	// GOMAXPROCS by the number of these threads.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + threads))
	per := min(int(rate*d.Seconds())/threads, 1<<16) // a thread sends at most 65,536 questions, because the ids of its questions must be unique
	all := make([][]*client, threads)
	defer func() {
		for _, c := range slices.Concat(all...) {
			c.conn.Close()
		}
	}()
	for i := range clients {
		c, err := newClient(addr, questions, i)
		if err != nil {
			return tail{}, err
		}
		all[i%threads] = append(all[i%threads], c)
	}
	came, read := make([][]time.Duration, threads), make([][]time.Duration, threads)
	errs := make([]error, threads)
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			came[i], read[i], errs[i] = openLoop(ctx, all[i], per, time.Duration(float64(threads)*float64(time.Second)/rate))
		})
	}
	wg.Wait()
	delays, later := slices.Concat(came...), slices.Concat(read...)
	if err := errors.Join(append(errs, ctx.Err())...); err != nil || len(delays) == 0 {
		return tail{}, err
	}
	slices.Sort(delays)
	slices.Sort(later)
	return tail{p50: delays[len(delays)/2], p99: delays[len(delays)*99/100], read: later[len(later)*99/100], rate: rate}, nil
}

// arrivalSize is the size of the control message SCM_TIMESTAMPNS, the arrival time of a packet: a header and
// a timespec.
const arrivalSize = unix.SizeofCmsghdr + 16

// arrival returns the time at which a packet arrived at its socket, in Unix nanoseconds, or 0 if the control
// message is missing.
func arrival(control []byte) int64 {
	if len(control) < arrivalSize || binary.NativeEndian.Uint32(control[12:]) != unix.SO_TIMESTAMPNS {
		return 0
	}
	t := control[unix.SizeofCmsghdr:]
	return int64(binary.NativeEndian.Uint64(t))*1e9 + int64(binary.NativeEndian.Uint64(t[8:]))
}

// openLoop sends n questions, one in each step. For each it returns the delay until the answer arrived at the
// socket, and the delay until the generator read it. The difference is the generator's wait for a CPU, which
// the servers do not cause. The clients take turns. The id in a DNS question is the index of the question, by
// which the answer is assigned to it. All clients run on one thread, which sleeps in a system call between
// the steps, because Go's timers are too coarse.
func openLoop(ctx context.Context, clients []*client, n int, every time.Duration) (came, read []time.Duration, err error) {
	const rest = 200 * time.Microsecond // time between wake-ups; with shorter pauses the generator would need too much CPU
	fds := make([]unix.PollFd, len(clients))
	for i, c := range clients {
		rc, err := c.conn.SyscallConn()
		if err != nil {
			return nil, nil, err
		}
		var serr error
		if err := rc.Control(func(f uintptr) {
			fds[i] = unix.PollFd{Fd: int32(f), Events: unix.POLLIN}
			serr = unix.SetsockoptInt(int(f), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		}); err != nil || serr != nil {
			return nil, nil, errors.Join(err, serr)
		}
		for i := range c.in {
			c.in[i].OOB = make([]byte, 64)
		}
	}
	ask := make([]ipv4.Message, dnsWindow)
	for i := range ask {
		ask[i].Buffers = [][]byte{make([]byte, 0, 512)}
	}
	sent := make([]time.Duration, n) // time of each question since began
	came, read = make([]time.Duration, n), make([]time.Duration, n)
	for i := range came {
		came[i], read[i] = dnsLost, dnsLost
	}
	began := time.Now()
	for next, got, turn := 0, 0, 0; got < n && ctx.Err() == nil; turn++ {
		now := time.Since(began)
		if next == n && now > sent[n-1]+dnsLost {
			break // after the time limit, answers that are still missing count as lost
		}
		c := clients[turn%len(clients)]
		k := max(0, min(n-next, int(now/every)+1-next, dnsWindow))
		for i := range k {
			b := append(ask[i].Buffers[0][:0], c.asked[(c.next+i)%len(c.asked)]...)
			binary.BigEndian.PutUint16(b, uint16(next+i))
			ask[i].Buffers[0], sent[next+i] = b, now
		}
		for at := 0; at < k; {
			w, err := c.pc.WriteBatch(ask[at:k], 0)
			if err != nil {
				return nil, nil, err
			}
			at += w
		}
		c.next, next = c.next+k, next+k
		timeout := unix.NsecToTimespec(int64(rest))
		ready, err := unix.Ppoll(fds, &timeout, nil)
		if errors.Is(err, unix.EINTR) || err == nil && ready == 0 {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for i, c := range clients {
			if fds[i].Revents == 0 {
				continue
			}
			r, err := c.pc.ReadBatch(c.in, 0)
			if err != nil {
				return nil, nil, err
			}
			now = time.Since(began)
			for i := range r {
				b := c.in[i].Buffers[0][:c.in[i].N]
				if !isAnswer(b) {
					return nil, nil, fmt.Errorf("the server %s sent %x, which is not an answer with records", c.conn.RemoteAddr(), b)
				}
				if at := int(binary.BigEndian.Uint16(b)); at < next && read[at] == dnsLost {
					read[at] = now - sent[at]
					// The kernel's time of arrival is wrong if someone has set the wall clock since the
					// start. Use it only if it gives a shorter delay than the generator's own clock.
					came[at] = read[at]
					if d := time.Duration(arrival(c.in[i].OOB[:c.in[i].NN])-began.UnixNano()) - sent[at]; d > 0 && d < read[at] {
						came[at] = d
					}
					got++
				}
			}
		}
	}
	return came, read, ctx.Err()
}
