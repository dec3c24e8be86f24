package mirror

import (
	"errors"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// FuzzImport: an import of arbitrary records returns a consistent state. It returns a Problem (key and
// reason) for each record that cannot be imported.
func FuzzImport(f *testing.F) {
	whole := `{"id":"web","type":"docker-container","image":"nginx","status":"Running","assignedNode":"n1","metadata":{"created_at":"2026-01-02T03:04:05Z","failureObservedAt":"x"},"retry":{"attempts":-1,"maxAttempts":9},"createdAt":"2026-01-02 03:04:05"}`
	own := `{"id":"web","type":"container","status":"Deleting","nodeId":"n1","persys":{"spec":"AAAA","content":"c1:x","demand":{"cpuMillicores":1,"ports":[{"port":80,"protocol":"tcp"}]}}}`
	node := `{"nodeId":"n1","ipAddress":"10.0.0.1","status":"Active","totalCpu":4,"totalMemory":8192,"agentGrpcPort":50051,"lastHeartbeat":"","persys":{"leaseSeconds":10}}`
	for _, w := range []string{whole, own, `{}`, `null`, `[]`} {
		f.Add("web", w, `{"status":"Failed","assignedNode":"n1","statusInfo":{"reason":{"code":"x"}}}`, node, `{"clusterId":"c1","incarnation":3,"index":7,"complete":true}`)
	}
	f.Add("", `{"id":"","metadata":{"reason_code":1}}`, ``, `{"totalCpu":1e300,"totalMemory":-5}`, `{"clusterId":""}`)
	f.Fuzz(func(t *testing.T, id, record, status, node, cursor string) {
		for _, text := range []string{record, cursor} {
			if c, err := parseCursor(text); err == nil && c.raw != text {
				t.Fatalf("a cursor must keep its text, but %q was parsed as %q", text, c.raw)
			}
			if o, err := parseOwner(text); err == nil && o.ClusterID == "" {
				t.Fatal("parsing accepted an owner without a cluster")
			}
		}
		for _, split := range []bool{false, true} {
			keys, err := newKeyspace("")
			if err != nil {
				t.Fatal(err)
			}
			r := reader{
				keys: keys, nodes: map[string]Node{}, whole: map[string]Workload{}, specs: map[string]Workload{}, statuses: map[string]WorkloadStatus{},
				assignments: map[string]Assignment{}, retries: map[string]Retry{},
			}
			into := r.whole
			if split {
				into = r.specs
			}
			faults := errors.Join(decodeInto(into, id, []byte(record)), decodeInto(r.statuses, id, []byte(status)), r.node("n1", []byte(node)),
				decodeInto(r.assignments, id, []byte(status)), decodeInto(r.retries, id, []byte(record)))
			_ = faults // Read returns these errors as Problems
			read := r.finish()
			s, problems, err := read.State(fsm.Info{ClusterID: "c1", Shard: "genesis", FeatureLevel: 1}, func(w *Workload) (*commandv1.WorkloadPut, error) {
				if w.Image == "" {
					return nil, errors.New("no image")
				}
				return &commandv1.WorkloadPut{Id: w.ID, Spec: []byte(w.Image), Content: "c1:" + w.Image, Demand: &commandv1.Demand{Type: "container"}}, nil
			})
			if err != nil {
				continue
			}
			if err := s.Check(); err != nil {
				t.Fatalf("an import returned an inconsistent state: %v (problems %v)", err, problems)
			}
		}
	})
}
