package dnsserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of TCP connections (RFC 7766, 6.2).
const (
	maxConns          = 512
	maxConnsPerClient = 32
	idleTimeout       = 10 * time.Second
	writeTimeout      = 5 * time.Second
	acceptPause       = 10 * time.Millisecond
)

// conns counts open TCP connections, in total and per client.
type conns struct {
	mu  sync.Mutex
	all int
	by  map[netip.Addr]int
}

func (c *conns) add(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxConns || c.by[a] >= maxConnsPerClient {
		return false
	}
	c.all++
	c.by[a]++
	return true
}

func (c *conns) remove(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.by[a]--; c.by[a] == 0 {
		delete(c.by, a)
	}
}

// serveTCP accepts connections until ctx ends.
func (s *Server) serveTCP(ctx context.Context) error {
	open := &conns{by: map[netip.Addr]int{}}
	for {
		conn, err := s.tcp.Accept()
		switch {
		case ctx.Err() != nil:
			if conn != nil {
				conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // accept failed because no file descriptor is free, or because the client closed the connection
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		client := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if !open.add(client) {
			conn.Close()
			continue
		}
		s.wg.Go(func() {
			defer open.remove(client)
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			s.serveConn(ctx, conn, client)
		})
	}
}

// serveConn answers the queries on a TCP connection in order, until the client closes it, is idle for
// idleTimeout, or sends a message that gets no reply.
func (s *Server) serveConn(ctx context.Context, conn net.Conn, client netip.Addr) {
	var r reader
	in, out := make([]byte, 512), make([]byte, 0, 1024)
	for {
		conn.SetReadDeadline(time.Now().Add(idleTimeout))
		if _, err := io.ReadFull(conn, in[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(in))
		if n > len(in) {
			in = make([]byte, n)
		}
		if _, err := io.ReadFull(conn, in[:n]); err != nil {
			return
		}
		began := time.Now()
		reply, foreign := s.respond(append(out[:0], 0, 0), in[:n], true, client, began, &r)
		if foreign {
			answer := serverFailure(in[:n])
			if s.forward.acquire() {
				answer = s.foreign(ctx, in[:n], true)
				s.forward.release()
			}
			reply = append(reply[:2], answer...)
		}
		if len(reply) == 2 {
			return
		}
		binary.BigEndian.PutUint16(reply, uint16(len(reply)-2))
		conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := conn.Write(reply); err != nil {
			return
		}
		if !foreign {
			s.metrics.observe(time.Since(began), 1)
		}
		out = reply
	}
}
