package replica_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/replica"
	"github.com/persys/compute/testbed"
)

// TestEveryReplicaHasAllMetrics: the leader, and also followers that have answered no call, export every
// documented metric. For a metric that counts objects in the state, the sum over the three replicas is the number of
// objects.
func TestEveryReplicaHasAllMetrics(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	gossip := make([]string, 3)
	for i := range gossip {
		l, c := testbed.Port(t)
		gossip[i] = l.Addr().String()
		_, _ = l.Close(), c.Close()
	}
	var all []*replica.Replica
	for i, at := range gossip {
		cfg, err := replica.DefaultConfig()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Insecure, cfg.Name, cfg.DataDir = true, fmt.Sprint("s", i), t.TempDir()
		cfg.BootstrapExpect, cfg.EtcdEndpoints = 3, []string{"none"}
		cfg.GRPCPort, cfg.MetricsPort = 0, 0
		cfg.RaftAddr, cfg.GossipAddr, cfg.DNSAddr = "127.0.0.1:0", at, "127.0.0.1:0"
		cfg.Join = gossip
		r, err := replica.Start(ctx, cfg, "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		run, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- r.Run(run) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		all = append(all, r)
	}
	if _, err := all[0].Node().WaitLeader(ctx); err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient(all[0].GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	testbed.Within(t, time.Minute, "a node is registered", func() error {
		r, err := controlv1.NewAgentControlClient(cc).RegisterNode(ctx, &controlv1.RegisterNodeRequest{
			NodeId: "n", GrpcEndpoint: "127.0.0.1:1", Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1, MemoryTotalMb: 1},
		})
		if err == nil && !r.GetAccepted() {
			err = fmt.Errorf("%s", r.GetReason())
		}
		return err
	})
	testbed.Within(t, time.Minute, "all replicas export all metrics", func() error {
		ready := 0.0
		for _, r := range all {
			page, err := scrape(ctx, "http://"+r.HTTPAddr()+"/metrics")
			if err != nil {
				return err
			}
			for _, m := range replica.Metrics() {
				if !strings.Contains(page, "\n# TYPE "+m.Name+" ") {
					t.Fatalf("metric %s must be present on every replica, but is missing on a replica (whether this replica leads: %v)", m.Name, r.Node().IsLeader())
				}
			}
			_, rest, _ := strings.Cut(page, `persys_scheduler_nodes_status{status="ready"} `)
			line, _, _ := strings.Cut(rest, "\n")
			n, err := strconv.ParseFloat(line, 64)
			if err != nil {
				return err
			}
			ready += n
		}
		if ready != 1 {
			return fmt.Errorf("the sum of the number of nodes over the metrics of all replicas is %v, want 1", ready)
		}
		return nil
	})
}

func scrape(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	return "\n" + string(page), err
}
