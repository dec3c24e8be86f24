package agent

import (
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/document"
)

func privileged(r *agentv1.ApplyWorkloadRequest) { r.Spec.GetContainer().Privileged = true }

func adminsOnly(r *agentv1.ApplyWorkloadRequest) { r.AdminsOnly = true }

func mounts(path string) option {
	return func(r *agentv1.ApplyWorkloadRequest) {
		r.Spec.GetContainer().Volumes = []*agentv1.VolumeMount{{HostPath: path, ContainerPath: "/x"}}
	}
}

func policyText(t *testing.T, name string) string {
	t.Helper()
	p, _ := policy.Builtin(name)
	text, err := document.Format(p)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPoliciesDecideWhetherAWorkloadStarts checks that an agent starts a workload, or refuses it, depending
// on the sender of the order, the policies in the order, and PERSYS_POLICY.
func TestPoliciesDecideWhetherAWorkloadStarts(t *testing.T) {
	ours := []option{by(1), at(1)}
	scheduler := t.TempDir()
	under := func(policies ...string) option {
		return func(r *agentv1.ApplyWorkloadRequest) { r.Policy, r.NodePolicies = policies[0], policies[1:] }
	}
	wide, base, hard := policyText(t, policy.Privileged), policyText(t, policy.Baseline), policyText(t, policy.Restricted)
	for _, tt := range []struct {
		name    string
		own     string // value of PERSYS_POLICY, the machine's own policy
		order   []option
		refused []string // texts that the failure message contains; empty if the workload runs
	}{
		{"the root of the host", "", append(ours, mounts("/")), []string{`"/"`, `policy "baseline"`, "rule engine_socket", "container.volumes[0].host_path", "set PERSYS_POLICY"}},
		{"an ordinary workload", "", ours, nil},
		{"a workload of a namespace that only admins use", "", append(ours, privileged, adminsOnly), nil},
		{"a privileged workload of a namespace that other users may use", "", append(ours, privileged), []string{`policy "baseline"`, "rule privileged"}},
		{"only a scheduler's policy allows privileged", "", append(ours, privileged, under(wide)), []string{`policy "baseline"`, "rule privileged"}},
		{"the policies of scheduler and node allow privileged", policy.Privileged, append(ours, privileged, under(wide)), nil},
		{"a scheduler's policy refuses privileged", policy.Privileged, append(ours, privileged, under(base)), []string{`policy "baseline"`, "rule privileged", "ask an admin"}},
		{"a node's policy refuses the workload", policy.Privileged, append(ours, under(base, wide, hard)), []string{`policy "restricted"`, "rule requires"}},
		{"a policy of a later version", "", append(ours, under("name: new\nkinds: ['*']\nimages: ['*']\nusers: ['*']\nof_a_later_version: true\n")), nil},
		{"an invalid policy document", "", append(ours, adminsOnly, under("[1, 2]")), []string{"policy"}},
		{"an order of a legacy v1 scheduler", "", []option{privileged, mounts("/srv")}, nil},
		{"a legacy v1 scheduler and a policy of the node", policy.Baseline, []option{privileged}, []string{`policy "baseline"`, "PERSYS_POLICY"}},
		{"an admin and a policy of the node", policy.Baseline, append(ours, privileged, adminsOnly), []string{`policy "baseline"`, "PERSYS_POLICY"}},
		{"an admin and the data of a scheduler", "", append(ours, adminsOnly, mounts(scheduler)), []string{"not allowed on this node", "rule protected_paths"}},
		{"a legacy v1 scheduler and the data of a scheduler", "", []option{mounts(scheduler + "/raft")}, []string{"rule protected_paths"}},
		{"a mount of the agent's state file, allowed by the scheduler's policy", "", append(ours, adminsOnly, mounts("STATE"), under("kinds: ['*']\nimages: ['*']\nusers: ['*']\nhost_paths: [{path: /}]\n")), []string{"rule protected_paths", "state.db"}},
		{"a mount of the agent's state file, ordered by an admin", "", append(ours, adminsOnly, mounts("STATE")), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) {
				c.Ceiling.Protected = []string{scheduler}
				if tt.own != "" {
					c.Ceiling.Policy, _ = policy.Builtin(tt.own)
				}
			})
			r.start()
			out := r.apply("web", "sim/run", append(tt.order, func(q *agentv1.ApplyWorkloadRequest) {
				for _, v := range q.Spec.GetContainer().GetVolumes() {
					v.HostPath = strings.ReplaceAll(v.HostPath, "STATE", r.cfg.StatePath)
				}
			})...)
			if !out.Applied {
				t.Fatalf("the order was refused: %s", out.Message)
			}
			if tt.refused == nil {
				r.reaches("web", running)
				return
			}
			st := r.reaches("web", failing)
			if got := st.Metadata["failure_reason"]; got != string(driver.InvalidSpecification) {
				t.Errorf("failure_reason is %q", got)
			}
			for _, word := range tt.refused {
				if !strings.Contains(st.Message, word) {
					t.Errorf("the status message of a refused workload lacks %q: %s", word, st.Message)
				}
			}
			if n := r.hooks.count("ensure web"); n > 1 {
				t.Errorf("the driver was called %d times, but a refused workload must not be retried", n)
			}
			if r.observed("web") != nil {
				t.Error("a refused workload has an instance")
			}
		})
	}
}

// TestCeilingOutlivesTheAgent checks that the policies of an order are stored on disk, and which workloads a
// restarted agent checks against its ceiling (PERSYS_POLICY). A running workload is not checked again. A
// workload whose instance was lost is checked before it is started again. A refused workload starts after an
// order with policies that allow more.
func TestCeilingOutlivesTheAgent(t *testing.T) {
	r := newRig(t).start()
	order := []option{by(1), at(1), privileged, adminsOnly}
	r.apply("web", "sim/run", order...)
	r.reaches("web", running)
	r.apply("web", "sim/run", by(1), at(2), privileged) // this order is without adminsOnly: users who are not admins may use the namespace now
	r.restart()
	r.reaches("web", running)
	drv := r.engine.Driver(driver.Identity{ClusterID: "c1", NodeID: r.cfg.NodeID, Owns: func(driver.ID) bool { return true }})
	if err := drv.Remove(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if st := r.reaches("web", failing); !strings.Contains(st.Message, "rule privileged") {
		t.Errorf("the message of the refused workload is %q, want the violated policy", st.Message)
	}
	r.apply("web", "sim/run", by(1), at(3), privileged, adminsOnly)
	r.reaches("web", running)
}
