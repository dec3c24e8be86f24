package replica_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/persys/compute/replica"
	"github.com/persys/compute/testbed"
)

// TestASchedulerCanBeEmbedded: another program can start a scheduler, wait until it leads, and stop it. No
// goroutine of the scheduler is left.
func TestASchedulerCanBeEmbedded(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	cfg, err := replica.DefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Insecure, cfg.Name, cfg.DataDir = true, "embedded", t.TempDir()
	cfg.BootstrapExpect, cfg.EtcdEndpoints = 1, []string{"none"}
	cfg.GRPCPort, cfg.MetricsPort, cfg.Pprof = 0, 0, true
	cfg.RaftAddr, cfg.GossipAddr, cfg.DNSAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := replica.Start(ctx, cfg, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(run) }()
	leader, err := r.Node().WaitLeader(ctx)
	if err != nil {
		t.Error(err)
	}
	if leader.Name != cfg.Name {
		t.Errorf("the leader is %q, want %q", leader.Name, cfg.Name)
	}
	testbed.Within(t, time.Minute, "a scheduler that answers /health with 200", func() error {
		return healthy(ctx, "http://"+r.HTTPAddr()+"/health")
	})
	if err := healthy(ctx, "http://"+r.HTTPAddr()+"/debug/pprof/"); err == nil {
		t.Error("the metrics port must not serve profiles, but does")
	}
	if info, err := os.Stat(filepath.Join(cfg.DataDir, "pprof.sock")); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Errorf("the file pprof.sock has info %v (error %v), want a socket", info, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// healthy requests a health URL over a new connection. It returns an error unless the HTTP status is 200.
func healthy(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}
