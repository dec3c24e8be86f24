package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// mirrored returns settings of schedulers that mirror their state into an etcd and check its health
// often.
func mirrored(etcd *harness.Part, more map[string]string) map[string]string {
	env := fast(map[string]string{"ETCD_ENDPOINTS": etcd.Addr, "ETCD_PROBE_INTERVAL": "300ms", "ETCD_TIMEOUT": "1s"})
	for k, v := range more {
		env[k] = v
	}
	return env
}

// etcdPart starts an etcd with one member.
func etcdPart(t *testing.T, args ...string) *harness.Part {
	t.Helper()
	dir := t.TempDir()
	e := part(t, func() (*harness.Part, error) { return harness.Etcd(t.Context(), dir) })
	e.Args = append(e.Args, args...)
	must(t, e.Start())
	must(t, harness.WaitEtcd(t.Context(), e, settle))
	return e
}

// etcdClient returns an etcd client, with which the test acts as an operator and checks the content of
// etcd.
func etcdClient(t *testing.T, e *harness.Part) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + e.Addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// allKeys returns all keys and values of an etcd.
func allKeys(ctx context.Context, c *clientv3.Client) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out := map[string]string{}
	for from := "\x00"; ; {
		r, err := c.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(1000))
		if err != nil {
			return nil, err
		}
		for _, kv := range r.Kvs {
			out[string(kv.Key)] = string(kv.Value)
			from = string(kv.Key) + "\x00"
		}
		if !r.More {
			return out, nil
		}
	}
}

// stateOf returns the whole replicated state, from the snapshot of a replica.
func stateOf(ctx context.Context, admin clusterv1.ClusterClient) (fsm.State, error) {
	in, err := admin.CreateBackup(ctx, &clusterv1.CreateBackupRequest{})
	if err != nil {
		return fsm.State{}, err
	}
	var all bytes.Buffer
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return fsm.ReadSnapshot(&all)
		}
		if err != nil {
			return fsm.State{}, err
		}
		all.Write(m.GetData())
	}
}

// cursorText is the documented part of the mirror's cursor: the key in etcd that says up to which log index
// the mirror contains the state.
type cursorText struct {
	Incarnation uint64 `json:"incarnation"`
	Term        uint64 `json:"term"`
	Index       uint64 `json:"index"`
	Upto        uint64 `json:"upto"`
	Complete    bool   `json:"complete"`
}

func cursorKey(cluster string) string { return "/persys/mirror/" + cluster + "/cursor" }

// equals waits until etcd has exactly the records that the state requires. It compares key by key, in the
// form that the legacy contract documents, without using the mirror's code. The schedulers' own comparison of
// state and etcd (RestoreMirror with preview) must find no difference either.
func equals(t *testing.T, c *harness.Cluster, kv *clientv3.Client, when string) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), settle, "the mirror to equal the state "+when, func(ctx context.Context) error {
		admin, err := c.LeaderAdmin(ctx)
		if err != nil {
			return err
		}
		have, err := allKeys(ctx, kv)
		if err != nil {
			return err
		}
		s, err := stateOf(ctx, admin)
		if err != nil {
			return err
		}
		var at cursorText
		if err := json.Unmarshal([]byte(have[cursorKey(s.Info().ClusterID)]), &at); err != nil {
			return fmt.Errorf("the mirror's cursor %q cannot be read: %w", have[cursorKey(s.Info().ClusterID)], err)
		}
		// The cursor of the mirror need not equal the last log index: entries that change no record, such as barriers,
		// do not move it.
		if !at.Complete || at.Upto != 0 || at.Index > s.Info().Index || at.Incarnation != s.Info().Incarnation {
			return fmt.Errorf("the cursor in etcd is %+v, want a complete one at index %d of incarnation %d", at, s.Info().Index, s.Info().Incarnation)
		}
		if wrong := differences(s, have); len(wrong) > 0 {
			return fmt.Errorf("etcd has %d differences from the state: %s", len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "; "))
		}
		p, err := admin.RestoreMirror(ctx, &clusterv1.RestoreMirrorRequest{Preview: true})
		if err != nil {
			return err
		}
		if n := p.GetCreated() + p.GetChanged() + p.GetRemoved(); n > 0 {
			return fmt.Errorf("the scheduler finds %d differences between the state and etcd: %v", n, p.GetDifferences())
		}
		return nil
	}))
}

// differences compares the keys read from etcd (have) with the keys that the contract documents for the state s,
// and describes each difference.
func differences(s fsm.State, have map[string]string) (wrong []string) {
	want := map[string]func(value string) error{}
	fields := func(expected map[string]any) func(string) error {
		return func(value string) error {
			var got map[string]any
			if err := json.Unmarshal([]byte(value), &got); err != nil {
				return err
			}
			for k, v := range expected {
				at := any(got)
				for _, step := range strings.Split(k, ".") {
					m, _ := at.(map[string]any)
					at = m[step]
				}
				if at == nil {
					at = "" // JSON leaves the field out when it is empty
				}
				if fmt.Sprint(at) != fmt.Sprint(v) {
					return fmt.Errorf("field %s is %v, must be %v", k, at, v)
				}
			}
			return nil
		}
	}
	plain := func(text string) func(string) error {
		return func(value string) error {
			if value != text {
				return fmt.Errorf("the value is %q, must be %q", value, text)
			}
			return nil
		}
	}
	s.Workloads("", func(w *fsm.Workload) bool {
		want["/workloads/"+w.ID] = fields(map[string]any{
			"id": w.ID, "type": w.Demand.Type, "status": w.Status, "desiredState": w.Desired, "assignedNode": w.Node,
			"revisionId": w.Revision(), "persys.content": w.Content, "persys.restarts": zeroAsNone(int64(w.Restarts)),
			"statusInfo.actualState": w.Actual.State, "retry.attempts": w.Retry.Attempts,
		})
		want["/retries/"+w.ID] = fields(map[string]any{"attempts": w.Retry.Attempts, "maxAttempts": w.Retry.MaxAttempts})
		if w.Node != "" {
			want["/assignments/"+w.ID] = fields(map[string]any{"workloadId": w.ID, "nodeId": w.Node})
		}
		return true
	})
	s.Nodes("", func(n *fsm.Node) bool {
		want["/nodes/"+n.ID] = fields(map[string]any{
			"nodeId": n.ID, "status": n.Status(), "agentEndpoint": n.Facts.Endpoint, "totalMemory": n.Facts.Memory, "persys.instanceId": n.Facts.InstanceID,
		})
		want["/nodes/"+n.ID+"/status"] = plain(string(n.Status()))
		want["/nodes/"+n.ID+"/lease"] = func(value string) error {
			if strings.Contains(value, "granted") != n.Up {
				return fmt.Errorf("the lease record of a node is %q, although the node is %s", value, n.Status())
			}
			return nil
		}
		return true
	})
	s.Drifts("", func(d *fsm.Drift) bool {
		want["/drifts/"+d.Node+"/"+d.Workload+"/"+d.Type] = fields(map[string]any{"nodeId": d.Node, "workloadId": d.Workload, "driftType": d.Type, "resolved": false,
			"schedulerStatus": d.SchedulerStatus, "agentStatus": d.AgentStatus, "action": d.Action})
		return true
	})
	events := map[string]*fsm.Event{}
	s.Events(0, func(e *fsm.Event) bool {
		events[fmt.Sprintf("%020d", e.Seq)] = e
		return true
	})
	for k, v := range have {
		check, ok := want[k]
		switch dir := "/" + strings.Split(strings.TrimPrefix(k, "/"), "/")[0] + "/"; {
		case ok:
			if err := check(v); err != nil {
				wrong = append(wrong, k+": "+err.Error())
			}
			delete(want, k)
		case dir == "/events/":
			seq := k[strings.LastIndex(k, "-")+1:]
			e := events[seq]
			if e == nil {
				wrong = append(wrong, k+" belongs to no event")
				continue
			}
			if err := fields(map[string]any{"type": e.Type, "workloadId": e.Workload, "nodeId": e.Node, "reason": e.Reason})(v); err != nil {
				wrong = append(wrong, k+": "+err.Error())
			}
			delete(events, seq)
		case slices.Contains([]string{"/workloads/", "/workloads-spec/", "/workloads-status/", "/assignments/", "/retries/", "/nodes/"}, dir):
			wrong = append(wrong, k+" belongs to no object of the state")
		}
	}
	for k := range want {
		wrong = append(wrong, k+" is missing")
	}
	for _, e := range events {
		wrong = append(wrong, fmt.Sprintf("event %d (%s) is missing", e.Seq, e.Type))
	}
	slices.Sort(wrong)
	return wrong
}

// zeroAsNone formats a number as text. It returns "" for 0, because records in etcd have no field for a value
// of 0.
func zeroAsNone(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// waitMode waits until every running scheduler reports the given mode of the control plane.
func waitMode(t *testing.T, c *harness.Cluster, mode string) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), settle, "mode "+mode, func(ctx context.Context) error {
		for i, s := range c.Schedulers {
			if !s.Running() {
				continue
			}
			st, err := c.Status(ctx, i)
			if err != nil {
				return err
			}
			if st.GetMode() != mode {
				return fmt.Errorf("scheduler %s is still in mode %s: %s", s.Name, st.GetMode(), st.GetModeReason())
			}
		}
		return nil
	}))
}
