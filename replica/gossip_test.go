package replica

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// checkSharedKey: the leader stores a key, as before a restore, on the disks of all replicas.
func checkSharedKey(ctx context.Context, t *testing.T, replicas []*Replica) {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := replicas[0].keys.Keep(key); err != nil {
		t.Fatal(err)
	}
	// The state does not list a replica before it has joined.
	testbed.Within(t, time.Minute, "all replicas have the shared key", func() error {
		err := replicas[0].shareKey(ctx, key)
		for _, r := range replicas {
			if err == nil && r.keys.Held(key.ID()) == nil {
				err = fmt.Errorf("scheduler %s does not have the shared key", r.cfg.Name)
			}
		}
		return err
	})
}

// TestGossipKeyRotates: an admin rotates the gossip key of three running replicas. Afterwards a fourth replica must be
// able to join with a token. Then the fourth replica is revoked: the key must be rotated again, and the fourth replica
// must not get the new key.
func TestGossipKeyRotates(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	configure := func(name, token string) Config {
		t.Helper()
		cfg, err := DefaultConfig()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Name, cfg.DataDir, cfg.Init, cfg.CertLife = name, filepath.Join(dir, name), token == "", time.Hour
		cfg.BindAddr, cfg.GRPCPort, cfg.MetricsPort = "127.0.0.1", 0, 0
		cfg.RaftAddr, cfg.GossipAddr, cfg.DNSAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
		cfg.EtcdEndpoints = []string{"none"}
		if token != "" {
			cfg.Join = []string{token}
		}
		return cfg
	}
	start := func(name, token string) *Replica {
		t.Helper()
		r, err := Start(ctx, configure(name, token), "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("the start of scheduler %s returned %v, want success", name, err)
		}
		rctx, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.Run(rctx); err != nil {
				t.Errorf("Run of scheduler %s returned %v, want success", name, err)
			}
		})
		t.Cleanup(func() { stop(); wg.Wait() })
		return r
	}
	eventually := func(what string, ready func() error) {
		t.Helper()
		testbed.Within(t, 3*time.Minute, what, ready)
	}
	first := start("a", "")
	token := ""
	eventually("the leader creates a join token", func() error {
		raw, err := os.ReadFile(filepath.Join(dir, "a", "admin", "scheduler.token"))
		token = strings.TrimSpace(string(raw))
		return err
	})
	replicas := []*Replica{first, start("b", token), start("c", token)}
	alive := func() error {
		for _, r := range replicas {
			peers := r.node.Status().Peers
			if len(peers) != len(replicas) {
				return fmt.Errorf("scheduler %s knows %d replicas, want %d", r.cfg.Name, len(peers), len(replicas))
			}
			for _, p := range peers {
				if p.Health != "alive" {
					return fmt.Errorf("scheduler %s sees replica %s as %s, want alive", r.cfg.Name, p.ID, p.Health)
				}
			}
		}
		return nil
	}
	eventually("the three replicas hear each other in gossip", alive)
	checkSharedKey(ctx, t, replicas)

	paths := pki.IdentityStore{Dir: filepath.Join(dir, "a", "admin")}.Paths()
	files, err := pki.LoadFiles(pki.FilesConfig{CA: paths.CA, Cert: paths.Cert, Key: paths.Key})
	if err != nil {
		t.Fatal(err)
	}
	cc, err := first.dialSelf(files)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	id := ""
	eventually("the rotation of the gossip key has begun", func() error {
		r, err := clusterv1.NewTrustClient(cc).RotateGossip(ctx, &clusterv1.RotateGossipRequest{})
		id = r.GetKeyId()
		return err
	})
	settled := func() error {
		for _, r := range replicas {
			if got := r.gossip.installed(); len(got) != 1 || got[0] != id {
				return fmt.Errorf("scheduler %s has gossip keys %v, want only %s", r.cfg.Name, got, id)
			}
		}
		return nil
	}
	eventually("all replicas have only the new gossip key", settled)
	eventually("the replicas hear each other with the new gossip key", alive)
	raw, err := os.ReadFile(filepath.Join(dir, "b", "gossip.ring"))
	if st, serr := os.Stat(filepath.Join(dir, "b", "gossip.ring")); err != nil || serr != nil || st.Mode().Perm() != 0o600 || !strings.HasPrefix(string(raw), "sealed:1:") {
		t.Errorf("the ring file in the data directory has %.20q (errors %v, %v), want sealed content with mode 0600", raw, err, serr)
	}
	// A join fails because the cluster key cannot be stored. It must be possible to repeat the join with the same
	// token.
	inTheWay := filepath.Join(dir, "d", "cluster.key")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(ctx, configure("d", token), "test", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "SCHEDULER_CLUSTER_KEY_FILE") {
		t.Fatalf("the start of a scheduler that cannot store the cluster key returned %v, want an error that names SCHEDULER_CLUSTER_KEY_FILE", err)
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	replicas = append(replicas, start("d", token))
	eventually("all four replicas have only the new gossip key", settled)
	eventually("the four replicas hear each other", alive)

	// When a scheduler is revoked, the gossip key must be rotated although nobody requests it.
	out, asked := replicas[3], id
	replicas = replicas[:3]
	eventually("the revocation of the fourth replica is committed", func() error { // try again, because the leader may change
		_, err := clusterv1.NewTrustClient(cc).Revoke(ctx, &clusterv1.RevokeRequest{Role: "scheduler", Name: "d"})
		return err
	})
	eventually("all replicas but the revoked one have a newer gossip key", func() error {
		if got := first.gossip.installed(); len(got) != 1 || got[0] == asked {
			return fmt.Errorf("the leader has gossip keys %v, want one key other than %s", got, asked)
		}
		id = first.gossip.installed()[0]
		return settled()
	})
	if got := out.gossip.installed(); slices.Contains(got, id) {
		t.Errorf("the revoked replica must not get new gossip keys, but has %v", got)
	}
	eventually("the three other replicas hear each other, and not the revoked one", func() error {
		for _, r := range replicas {
			for _, p := range r.node.Status().Peers {
				if (p.ID == out.node.ID()) == (p.Health == "alive") {
					return fmt.Errorf("scheduler %s sees replica %s as %s; only the revoked replica may be seen as not alive", r.cfg.Name, p.ID, p.Health)
				}
			}
		}
		return nil
	})
	// The revocation has caused one rotation. A user's request through the API must then cause another rotation.
	if r, err := clusterv1.NewTrustClient(cc).RotateGossip(ctx, &clusterv1.RotateGossipRequest{}); err != nil {
		t.Fatal(err)
	} else {
		id = r.GetKeyId()
	}
	eventually("all remaining replicas have only the newest gossip key", settled)
	begun := 0
	first.node.Store().View().Events(0, func(e *fsm.Event) bool {
		if e.Type == fsm.EventGossipRing && strings.HasPrefix(e.Message, "opens ") {
			begun++
		}
		return true
	})
	if begun != 3 {
		t.Errorf("%d rotations of the gossip key were begun, want three: two by an admin and one by the revocation", begun)
	}
}
