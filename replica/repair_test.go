package replica_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/replica"
	"github.com/persys/compute/testbed"
)

// running is a scheduler that runs in the process of the test.
type running struct {
	*replica.Replica
	stop func()
}

func run(t *testing.T, r *replica.Replica) running {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var ended bool
	stop := func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return running{r, stop}
}

func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// TestDamagedDataIsRepaired: a scheduler with a damaged log waits while another scheduler is down. Meanwhile its
// /health and a metric show that it waits, and its gRPC port is closed. When the other scheduler is back, the damaged
// scheduler repairs itself. With SCHEDULER_REPAIR=off it refuses to start.
func TestDamagedDataIsRepaired(t *testing.T) {
	ports := freePorts(t, 12)
	log := slog.New(slog.DiscardHandler)
	cfgs := make([]replica.Config, 3)
	for i := range cfgs {
		cfg, err := replica.DefaultConfig()
		if err != nil {
			t.Fatal(err)
		}
		p := ports[4*i:]
		cfg.Insecure, cfg.Name, cfg.DataDir = true, fmt.Sprintf("s%d", i), t.TempDir()
		cfg.BootstrapExpect, cfg.EtcdEndpoints, cfg.DNSAddr = 3, []string{"none"}, "127.0.0.1:0"
		cfg.GRPCPort, cfg.MetricsPort = p[0], p[1]
		cfg.RaftAddr, cfg.GossipAddr = fmt.Sprintf("127.0.0.1:%d", p[2]), fmt.Sprintf("127.0.0.1:%d", p[3])
		if i > 0 {
			cfg.Join = []string{cfgs[0].GossipAddr}
		}
		cfgs[i] = cfg
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	start := func(i int) running {
		t.Helper()
		r, err := replica.Start(ctx, cfgs[i], "test", log)
		if err != nil {
			t.Fatal(err)
		}
		return run(t, r)
	}
	var all [3]running
	for i := range all {
		all[i] = start(i)
	}
	for i := range all {
		testbed.Within(t, time.Minute, "peers.json names all three replicas", func() error {
			b, err := os.ReadFile(filepath.Join(cfgs[i].DataDir, "peers.json"))
			if n := bytes.Count(b, []byte(`"gossip"`)); err == nil && n != 3 {
				err = fmt.Errorf("found %d gossip addresses in %s, want 3", n, b)
			}
			return err
		})
	}
	old := all[2].Node().ID()
	all[2].stop()
	all[1].stop()
	raft := filepath.Join(cfgs[2].DataDir, cluster.RaftDir)
	if err := os.WriteFile(filepath.Join(raft, "log.db"), bytes.Repeat([]byte("nonsense"), 8192), 0o600); err != nil {
		t.Fatal(err)
	}

	off := cfgs[2]
	off.Repair = "off"
	if _, err := replica.Start(ctx, off, "test", log); !errors.Is(err, cluster.ErrCorrupt) || errors.Is(err, cluster.ErrNoRepair) ||
		!strings.HasSuffix(err.Error(), "`persysctl backup restore FILE`") || strings.Count(err.Error(), "mv "+raft) != 1 {
		t.Fatalf("the start with SCHEDULER_REPAIR=off returned %v, want the commands that move the folder and restore a backup", err)
	}

	type started struct {
		*replica.Replica
		error
	}
	back := make(chan started, 1)
	go func() {
		r, err := replica.Start(ctx, cfgs[2], "test", log)
		back <- started{r, err}
	}()
	url := fmt.Sprintf("http://127.0.0.1:%d", cfgs[2].MetricsPort)
	testbed.Within(t, time.Minute, "/health of a scheduler with damaged data says that it waits", func() error {
		code, body, err := get(ctx, url+"/health")
		if err != nil {
			return err
		}
		var h struct{ Status, Mode, Reason string }
		if err := json.Unmarshal(body, &h); err != nil {
			return err
		}
		if code != http.StatusServiceUnavailable || h.Status != "damaged" || h.Mode != "degraded" || !strings.Contains(h.Reason, "log.db") || !strings.Contains(h.Reason, "no leader answers") {
			return fmt.Errorf("/health answered %d %s, want 503, damaged, with the damaged file and the reason of the wait", code, body)
		}
		return nil
	})
	if _, body, err := get(ctx, url+"/metrics"); err != nil || !strings.Contains(string(body), "\npersys_scheduler_repair_waiting 1\n") {
		t.Errorf("/metrics answered %s (error %v), want persys_scheduler_repair_waiting 1", body, err)
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", cfgs[2].GRPCPort)); err == nil {
		c.Close()
		t.Error("the gRPC port of a scheduler that waits for its repair must be closed, but is open")
	}
	if _, err := os.Stat(filepath.Join(raft, "log.db")); err != nil {
		t.Error(err)
	}

	start(1)
	r := <-back
	if r.error != nil {
		t.Fatal(r.error)
	}
	again := run(t, r.Replica)
	testbed.Within(t, time.Minute, "the scheduler is a voter under a new id", func() error {
		if st := again.Node().Status(); st.ID == old || st.Role != cluster.RoleVoter && st.Role != cluster.RoleLeader {
			return fmt.Errorf("replica %s is %s", st.ID, st.Role)
		}
		return healthy(ctx, url+"/health")
	})
	testbed.Within(t, time.Minute, "the repaired scheduler exports the metric of a waiting repair", func() error {
		_, body, err := get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", cfgs[0].MetricsPort))
		if err == nil && !strings.Contains(string(body), "\npersys_scheduler_raft_repaired_timestamp_seconds{replica=\"s2\"} ") {
			err = errors.New("the metric that shows the waiting repair must be exported, but is missing")
		}
		return err
	})
}

func get(ctx context.Context, url string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, errors.Join(err, resp.Body.Close())
}
