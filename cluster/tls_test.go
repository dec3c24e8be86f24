package cluster

import (
	"bytes"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/persys/compute/pki"
)

func TestMutualTLS(t *testing.T) {
	set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{Schedulers: []string{"s0"}, Agents: []string{"node-a"}})
	if err != nil {
		t.Fatal(err)
	}
	files := func(who string) *pki.Files {
		p := set.Leaf[who]
		f, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: pki.DefaultMapping("dev")})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	key := bytes.Repeat([]byte{7}, 32)
	g := newGroup(t, 3)
	g.cfg = func(_ int, c *Config) {
		c.TLS, c.GossipKey = TLSFromFiles(files("scheduler/s0")), key
	}
	leader := g.form()
	mustPut(t, leader, "w", 1)

	t.Run("an agent's certificate is refused", func(t *testing.T) {
		raw, err := net.DialTimeout("tcp", leader.RaftAddr(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		raw.SetDeadline(time.Now().Add(2 * time.Second))
		conn := tls.Client(raw, files("agent/node-a").ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}}))
		err = conn.Handshake() // in TLS 1.3 the refusal comes with the first read
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err == nil || !contains(err.Error(), "remote error: tls") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a plain replica is not let in", func(t *testing.T) {
		join := leader.GossipAddr()
		n, err := open(timeout(t, patience), Config{
			Name: "plain", DataDir: t.TempDir(), RaftBind: "127.0.0.1:0", GossipBind: "127.0.0.1:0",
			Join: []string{join}, Timing: fastTiming(),
		}, hooks{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if k := n.gossip.join([]string{join}); k != 0 {
			t.Errorf("gossip without the key reached %d", k)
		}
		if _, err := n.greetPeer(timeout(t, 2*time.Second), leader.RaftAddr()); err == nil {
			t.Error("the raft port answered without TLS")
		}
	})
	g.close(g.index(leader))
	next := g.waitLeader()
	mustPut(t, next, "w", 2)
}
