package cluster

import (
	"bytes"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

func TestReplicasRequireMutualTLS(t *testing.T) {
	set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{Schedulers: []string{"s0"}, Agents: []string{"node-a"}})
	if err != nil {
		t.Fatal(err)
	}
	files := func(who string) *pki.Files {
		p := set.Leaf[who]
		f, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: pki.Mapping{Cluster: "dev"}})
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
	g.form()
	leader, _ := g.put("w", 1)

	t.Run("a connection to the Raft port with an agent's certificate is refused", func(t *testing.T) {
		raw, err := net.DialTimeout("tcp", leader.RaftAddr(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		raw.SetDeadline(time.Now().Add(2 * time.Second))
		conn := tls.Client(raw, files("agent/node-a").ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}}))
		err = conn.Handshake() // in TLS 1.3 a refusal arrives only with the first read
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err == nil || !contains(err.Error(), "remote error: tls") {
			t.Errorf("the connection with an agent's certificate ended with %v, want a TLS error of the replica", err)
		}
	})
	t.Run("a replica without TLS and without the gossip key is refused", func(t *testing.T) {
		join := leader.GossipAddr()
		n, err := open(timeout(t, patience), Config{
			Name: "plain", DataDir: t.TempDir(), RaftBind: "127.0.0.1:0", GossipBind: "127.0.0.1:0",
			Join: []string{join}, Timing: fastTiming(),
		}, hooks{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if k, _ := n.gossip.join([]string{join}); k != 0 {
			t.Errorf("a replica without the gossip key must reach no member, but reached %d", k)
		}
		if _, err := n.greetPeer(timeout(t, 2*time.Second), leader.RaftAddr()); err == nil {
			t.Error("the Raft port must not answer without TLS, but did")
		}
	})
	g.close(g.index(leader))
	g.put("w", 2)
}

// A replica whose certificate is revoked is cut off at once, even if it leads: its open connections are
// closed, and new connections are refused. The other replicas continue without it.
func TestRevokedReplicaIsCutOff(t *testing.T) {
	for _, who := range []string{"a follower", "the leader"} {
		t.Run(who, func(t *testing.T) {
			names := []string{"s0", "s1", "s2"}
			set, err := pki.DevCerts(t.TempDir(), pki.DevOptions{Schedulers: names})
			if err != nil {
				t.Fatal(err)
			}
			files := make([]*pki.Files, len(names))
			for i, name := range names {
				p := set.Leaf["scheduler/"+name]
				if files[i], err = pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: pki.Mapping{Cluster: "dev"}}); err != nil {
					t.Fatal(err)
				}
			}
			g := newGroup(t, len(names))
			g.cfg = func(i int, c *Config) { c.TLS = TLSFromFiles(files[i]) }
			leader := g.form()
			// Timeouts are short and the machine may be busy, so another replica may become leader
			// at any time: write through whichever replica leads.
			write := func(v int64, not *Node) {
				t.Helper()
				testbed.Until(t, "a write", func() bool {
					for _, n := range g.snapshot() {
						if n == not || !n.IsLeader() {
							continue
						}
						r, err := n.Propose(timeout(t, 2*time.Second), put("w", v))
						if err == nil && r[0].Err() == nil {
							leader = n
							return true
						}
					}
					return false
				})
			}
			write(1, nil)
			out := g.follower(leader)
			if who == "the leader" {
				out = leader
			}
			gone := g.index(out)
			testbed.Until(t, "the replica that will be revoked has the written value", func() bool {
				v, err := out.Read(timeout(t, time.Second), Stale, 0)
				return err == nil && value(v, "w") == 1
			})
			at := time.Now()
			for i, f := range files {
				if i != gone {
					f.Revoke(&pki.Revoked{Identities: map[string]time.Time{"scheduler/" + names[gone]: pki.IssuedAt(files[gone].Leaf())}})
				}
			}
			write(2, out)
			next := leader
			testbed.Until(t, "the revoked replica has no leader and no contact to the other replicas", func() bool {
				l, ok := out.Leader()
				return !out.IsLeader() && (!ok || l.ID == out.ID())
			})
			t.Logf("the revoked replica was cut off within %s", time.Since(at).Round(time.Millisecond))
			v, err := out.Read(timeout(t, time.Second), Stale, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := value(v, "w"); got != 1 {
				t.Errorf("the revoked replica must not get writes after its revocation, but has the value %d", got)
			}
			if _, err := out.greetPeer(timeout(t, 2*time.Second), next.RaftAddr()); err == nil {
				t.Error("another replica has answered the revoked replica's greeting on the Raft port, want a refusal")
			}
		})
	}
}
