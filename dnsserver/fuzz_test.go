package dnsserver

import (
	"bytes"
	"net"
	"testing"

	"github.com/miekg/dns"
)

type replying struct {
	net.Conn
	*bytes.Reader
}

func (r replying) Read(p []byte) (int, error) { return r.Reader.Read(p) }

// FuzzReply checks arbitrary bytes as the reply of an upstream server. An accepted reply must have a complete
// header.
func FuzzReply(f *testing.F) {
	ask := new(dns.Msg).SetQuestion("example.org.", dns.TypeA)
	msg, err := ask.Pack()
	if err != nil {
		f.Fatal(err)
	}
	answer, err := new(dns.Msg).SetReply(ask).Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(msg, answer, ask.Id)
	f.Add(msg, append([]byte{0, byte(len(answer))}, answer...), ask.Id)
	f.Add(msg, answer[:headerLen], ask.Id)
	f.Add([]byte{}, []byte{0, 1, 2}, uint16(0))
	f.Fuzz(func(t *testing.T, msg, data []byte, id uint16) {
		for _, tcp := range []bool{false, true} {
			reply, err := readReply(replying{Reader: bytes.NewReader(data)}, make([]byte, maxTCP), tcp)
			if err != nil {
				continue
			}
			if answers(reply, msg, id) && len(reply) < headerLen {
				t.Fatalf("the reply %x was accepted for the query %x", reply, msg)
			}
		}
		if len(msg) >= headerLen {
			_ = serverFailure(msg)
		}
	})
}
