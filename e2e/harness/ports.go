package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are chosen below the kernel's ephemeral range (by default from 32768), so that no outgoing
// connection can take a port between the check and the bind.
const (
	firstPort = 20000
	lastPort  = 31999
)

// ports chooses ports of 127.0.0.1 that are free for TCP and UDP. Another program may take such a port
// before the caller binds it. Then the caller tries again with other ports.
type ports struct{ used map[int]bool }

func (p *ports) take() (int, error) {
	if p.used == nil {
		p.used = map[int]bool{}
	}
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if p.used[port] || !free(port) {
			continue
		}
		p.used[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port among 200 random ones from %d to %d", firstPort, lastPort)
}

func free(port int) bool {
	addr := loopback(port)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	defer u.Close()
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// FreePort returns a port of 127.0.0.1 that is free for TCP and UDP.
func FreePort() (int, error) { return new(ports).take() }

// FreePorts returns n different free ports of 127.0.0.1.
func FreePorts(n int) (out []int, err error) {
	var p ports
	for range n {
		port, err := p.take()
		if err != nil {
			return nil, err
		}
		out = append(out, port)
	}
	return out, nil
}
