package dnsserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/miekg/dns"
)

const (
	maxForwards    = 256 // number of queries that may be forwarded at the same time; further queries get SERVFAIL
	forwardTimeout = 2 * time.Second
)

// forwarder sends queries for foreign names (outside the zones) to other servers. It caches no answers.
type forwarder struct {
	servers []string
	slots   chan struct{}
}

func newForwarder(list []string) (*forwarder, error) {
	servers, err := upstreams(list)
	if err != nil || len(servers) == 0 {
		return nil, err
	}
	return &forwarder{servers: servers, slots: make(chan struct{}, maxForwards)}, nil
}

// acquire takes one of the maxForwards slots without waiting. It reports whether a slot was free.
func (f *forwarder) acquire() bool {
	select {
	case f.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (f *forwarder) release() { <-f.slots }

// foreign returns the reply of the first upstream server that answers the query msg, or SERVFAIL if none
// does. The caller must hold a slot of the forwarder.
func (s *Server) foreign(ctx context.Context, msg []byte, tcp bool) []byte {
	for _, server := range s.forward.servers {
		if reply, err := exchange(ctx, server, msg, tcp); err == nil {
			s.metrics.forwarded.Inc()
			return reply
		}
	}
	s.metrics.unforwarded.Inc()
	return serverFailure(msg)
}

// serverFailure makes a SERVFAIL reply to a query that was already parsed.
func serverFailure(msg []byte) []byte {
	var q query
	q.read(msg)
	return q.finish(q.begin(nil, msg), 0, bitRA, dns.RcodeServerFailure, 0, 0, 0)
}

// exchange sends a query from a new port with a random id, so that replies are hard to forge. The returned
// reply has the id of msg again.
func exchange(ctx context.Context, server string, msg []byte, tcp bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	network := "udp"
	if tcp {
		network = "tcp"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	ask := make([]byte, 2, 2+len(msg))
	binary.BigEndian.PutUint16(ask, uint16(len(msg)))
	ask = append(ask, msg...)
	if _, err := rand.Read(ask[2:4]); err != nil {
		return nil, err
	}
	id := binary.BigEndian.Uint16(ask[2:])
	if !tcp {
		ask = ask[2:]
	}
	if _, err := conn.Write(ask); err != nil {
		return nil, err
	}
	buf := make([]byte, maxTCP)
	for {
		reply, err := readReply(conn, buf, tcp)
		if err != nil {
			return nil, err
		}
		if answers(reply, msg, id) {
			copy(reply, msg[:2])
			return reply, nil
		}
		if tcp {
			return nil, fmt.Errorf("the upstream server %s answered another question than it was asked", server)
		}
	}
}

func readReply(conn net.Conn, buf []byte, tcp bool) ([]byte, error) {
	if !tcp {
		n, err := conn.Read(buf)
		return buf[:n], err
	}
	if _, err := io.ReadFull(conn, buf[:2]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(buf))
	if n < headerLen {
		return nil, errors.New("the answer of the upstream server has no complete header")
	}
	_, err := io.ReadFull(conn, buf[:n])
	return buf[:n], err
}

// answers reports whether reply is a reply to the query msg that was sent with this id.
func answers(reply, msg []byte, id uint16) bool {
	var q query
	if _, ok := q.read(msg); !ok || q.end < headerLen || len(reply) < headerLen {
		return false // msg has no question, or reply has no header
	}
	if binary.BigEndian.Uint16(reply) != id || binary.BigEndian.Uint16(reply[2:])&bitQR == 0 {
		return false
	}
	// A reply with an error may omit the question.
	return binary.BigEndian.Uint16(reply[4:]) == 0 && len(reply) == headerLen ||
		len(reply) >= q.end && bytes.EqualFold(reply[headerLen:q.end], msg[headerLen:q.end])
}
