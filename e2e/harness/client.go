package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// admin is the identity with which the harness calls a cluster with TLS.
const admin = "user/" + pki.AdminID

// Files returns the files with the certificate of the identity "<role>/<id>". Without TLS it returns nil.
func (c *Cluster) Files(identity string) (*pki.Files, error) {
	if !c.opt.TLS {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.files[identity]; f != nil {
		return f, nil
	}
	leaf, ok := c.certs.Leaf[identity]
	if !ok {
		return nil, fmt.Errorf("no certificate was made for %q", identity)
	}
	f, err := pki.LoadFiles(pki.FilesConfig{CA: leaf.CA, Cert: leaf.Cert, Key: leaf.Key, Mapping: pki.Mapping{}})
	if err != nil {
		return nil, err
	}
	c.files[identity] = f
	return f, nil
}

// Dial connects to one address with the credentials of an identity ("<role>/<id>").
// Calls are not retried. The caller closes the connection.
func (c *Cluster) Dial(addr, identity string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	files, err := c.Files(identity)
	if err != nil {
		return nil, err
	}
	if files != nil {
		creds = credentials.NewTLS(files.ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}, Role: pki.RoleScheduler}))
	}
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
}

// Pinned returns a connection that calls only scheduler i, even if another one leads. Cluster.Close closes
// it.
func (c *Cluster) Pinned(i int) (*grpc.ClientConn, error) {
	addr := c.Schedulers[i].GRPC
	c.mu.Lock()
	cc := c.conns[addr]
	c.mu.Unlock()
	if cc != nil {
		return cc, nil
	}
	cc, err := c.Dial(addr, admin)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.conns[addr]; other != nil {
		return other, cc.Close()
	}
	c.conns[addr] = cc
	return cc, nil
}

// Control returns a client of the service AgentControl that calls only scheduler i, even if another one
// leads.
func (c *Cluster) Control(i int) (controlv1.AgentControlClient, error) {
	cc, err := c.Pinned(i)
	if err != nil {
		return nil, err
	}
	return controlv1.NewAgentControlClient(cc), nil
}

// Admin returns a client of the service Cluster that calls only scheduler i, even if another one leads.
func (c *Cluster) Admin(i int) (clusterv1.ClusterClient, error) {
	cc, err := c.Pinned(i)
	if err != nil {
		return nil, err
	}
	return clusterv1.NewClusterClient(cc), nil
}

// Conn returns a client for all schedulers, like the one in agents and persysctl: it sends each call to a
// scheduler that answers. The caller closes it.
func (c *Cluster) Conn(ctx context.Context) (*dial.Conn, error) {
	files, err := c.Files(admin)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.whole != nil {
		return c.whole, nil
	}
	// The connection is shared by later calls, so it must not end with the context of this call.
	c.whole, err = dial.Dial(context.WithoutCancel(ctx), dial.Options{Addrs: c.Addrs(), TLS: files, Insecure: files == nil, UserAgent: "persys-e2e"})
	return c.whole, err
}

// Any returns a client of AgentControl on any scheduler that answers.
func (c *Cluster) Any(ctx context.Context) (controlv1.AgentControlClient, error) {
	cc, err := c.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return controlv1.NewAgentControlClient(cc), nil
}

// AnyAdmin returns a client of the Cluster service on any scheduler that answers.
func (c *Cluster) AnyAdmin(ctx context.Context) (clusterv1.ClusterClient, error) {
	cc, err := c.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return clusterv1.NewClusterClient(cc), nil
}

// LeaderAdmin returns a client of the Cluster service on the scheduler that leads now.
func (c *Cluster) LeaderAdmin(ctx context.Context) (clusterv1.ClusterClient, error) {
	i, err := c.Leader(ctx)
	if err != nil {
		return nil, err
	}
	return c.Admin(i)
}

// callLimit is the time limit of one Status call.
const callLimit = 2 * time.Second

// Status returns the status of the cluster as scheduler i sees it.
func (c *Cluster) Status(ctx context.Context, i int) (*clusterv1.StatusResponse, error) {
	admin, err := c.Admin(i)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return admin.Status(ctx, &clusterv1.StatusRequest{})
}

// ErrNoLeader means that none of the replicas that answer is the leader.
var ErrNoLeader = errors.New("no replica leads")

// Leader returns the index of the leader. If several schedulers claim to lead, it returns the one with the
// highest term, because a deposed leader may not know yet that it was deposed. The caller must list paused
// replicas in except, because they do not answer.
func (c *Cluster) Leader(ctx context.Context, except ...int) (int, error) {
	best, term := -1, uint64(0)
	for i, s := range c.Schedulers {
		if !s.Running() || slices.Contains(except, i) {
			continue
		}
		st, err := c.Status(ctx, i)
		if err != nil || st.GetSelfId() == "" || st.GetLeaderId() != st.GetSelfId() {
			continue
		}
		if st.GetTerm() > term {
			best, term = i, st.GetTerm()
		}
	}
	if best < 0 {
		return 0, ErrNoLeader
	}
	return best, nil
}

// WaitLeader waits until a replica that is not in except leads, and returns its index.
func (c *Cluster) WaitLeader(ctx context.Context, limit time.Duration, except ...int) (int, error) {
	leader := -1
	err := testbed.Poll(ctx, limit, "waiting for a leader", func(ctx context.Context) (err error) {
		leader, err = c.Leader(ctx, except...)
		return err
	})
	return leader, err
}

// WaitReady waits until all schedulers agree on a leader and list each other as
// voters. It fails if a scheduler exits.
func (c *Cluster) WaitReady(ctx context.Context, limit time.Duration) error {
	return testbed.Poll(ctx, limit, "waiting for the schedulers", func(ctx context.Context) error {
		leader := ""
		for _, s := range c.Schedulers {
			if !s.Running() {
				return testbed.Final(fmt.Errorf("%s has ended:\n%s", s.Name, s.Tail(10)))
			}
			st, err := c.Status(ctx, s.Index)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			if st.GetLeaderId() == "" || st.GetLeaderAddr() == "" {
				return fmt.Errorf("%s knows no leader", s.Name)
			}
			if leader != "" && leader != st.GetLeaderId() {
				return fmt.Errorf("%s follows another leader than the schedulers before it", s.Name)
			}
			leader = st.GetLeaderId()
			voters := 0
			for _, r := range st.GetReplicas() {
				if (r.GetRole() == "leader" || r.GetRole() == "voter") && r.GetGrpcAddr() != "" {
					voters++
				}
			}
			if voters < len(c.Schedulers) {
				return fmt.Errorf("%s knows %d voters of %d", s.Name, voters, len(c.Schedulers))
			}
		}
		return nil
	})
}

// WaitNode waits until a node has a status (Ready, NotReady, Draining).
func (c *Cluster) WaitNode(ctx context.Context, node, status string, limit time.Duration) error {
	control, err := c.Any(ctx)
	if err != nil {
		return err
	}
	return testbed.Poll(ctx, limit, "waiting for node "+node, func(ctx context.Context) error {
		n, err := control.GetNode(ctx, &controlv1.GetNodeRequest{NodeId: node})
		if err != nil {
			return err
		}
		if got := n.GetNode().GetStatus(); got != status {
			return fmt.Errorf("the node is %s (%s), not %s", got, n.GetNode().GetStatusReason(), status)
		}
		return nil
	})
}

// WaitWorkload waits until the function want returns true for a workload, and returns its last view.
func (c *Cluster) WaitWorkload(ctx context.Context, id string, limit time.Duration, want func(*controlv1.WorkloadView) bool) (*controlv1.WorkloadView, error) {
	control, err := c.Any(ctx)
	if err != nil {
		return nil, err
	}
	var view *controlv1.WorkloadView
	err = testbed.Poll(ctx, limit, "waiting for workload "+id, func(ctx context.Context) error {
		w, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: id})
		if err != nil {
			return err
		}
		view = w.GetWorkload()
		if !want(view) {
			return fmt.Errorf("the workload is %s on %q (%s: %s) %s", view.GetStatus(), view.GetAssignedNodeId(),
				view.GetReason().GetCode(), view.GetReason().GetMessage(), view.GetFailureReason())
		}
		return nil
	})
	return view, err
}

// CtlEnv returns the environment in which persysctl calls the given addresses. Without addresses persysctl
// calls all schedulers.
func (c *Cluster) CtlEnv(addrs ...string) []string {
	if len(addrs) == 0 {
		addrs = c.Addrs()
	}
	env := map[string]string{"PERSYS_SCHEDULER_ADDR": strings.Join(addrs, ","), "HOME": c.Dir}
	if c.opt.TLS {
		leaf := c.Leaf(admin)
		env["PERSYS_TLS_CA"], env["PERSYS_TLS_CERT"], env["PERSYS_TLS_KEY"] = leaf.CA, leaf.Cert, leaf.Key
	} else {
		env["PERSYS_INSECURE"] = "true"
	}
	return environment(env)
}

// CtlResult is the outcome of a run of persysctl.
type CtlResult struct {
	Code           int
	Stdout, Stderr string
}

// Ctl runs persysctl with the addresses of all schedulers. If persysctl exits with a code other than 0, the
// code is in the result, and Ctl returns no error.
func (c *Cluster) Ctl(ctx context.Context, args ...string) (CtlResult, error) {
	var out, errs bytes.Buffer
	code, err := c.RunCtl(ctx, c.CtlEnv(), &out, &errs, args...)
	return CtlResult{Code: code, Stdout: out.String(), Stderr: errs.String()}, err
}

// RunCtl runs persysctl with the environment env, such as one from CtlEnv, and returns its exit code.
func (c *Cluster) RunCtl(ctx context.Context, env []string, stdout, stderr io.Writer, args ...string) (int, error) {
	cmd := exec.CommandContext(ctx, c.opt.Binaries.Ctl, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return exit.ExitCode(), nil
	}
	return 0, err
}
