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
		{"a mount of the host's root folder that no policy allows is refused", "", append(ours, mounts("/")), []string{`"/"`, `policy "baseline"`, "rule engine_socket", "container.volumes[0].host_path", "set PERSYS_POLICY"}},
		{"a workload that asks for no resource of the host runs", "", ours, nil},
		{"a privileged workload of a namespace that only admins may use runs", "", append(ours, privileged, adminsOnly), nil},
		{"a privileged workload of a namespace that other users may use is refused", "", append(ours, privileged), []string{`policy "baseline"`, "rule privileged"}},
		{"a privileged workload is refused if only the scheduler's policy allows it, and the node's default policy does not", "", append(ours, privileged, under(wide)), []string{`policy "baseline"`, "rule privileged"}},
		{"a privileged workload runs if the policies of scheduler and node allow it", policy.Privileged, append(ours, privileged, under(wide)), nil},
		{"a privileged workload is refused if only the node's policy allows it, and the scheduler's does not", policy.Privileged, append(ours, privileged, under(base)), []string{`policy "baseline"`, "rule privileged", "ask an admin"}},
		{"a workload is refused if one of several policies in its order refuses it", policy.Privileged, append(ours, under(base, wide, hard)), []string{`policy "restricted"`, "rule requires"}},
		{"a workload runs although its policy has a field of a later version", "", append(ours, under("name: new\nkinds: ['*']\nimages: ['*']\nusers: ['*']\nof_a_later_version: true\n")), nil},
		{"an order with an invalid policy document is refused", "", append(ours, adminsOnly, under("[1, 2]")), []string{"policy"}},
		{"a privileged workload of a legacy v1 scheduler runs if the node has no policy", "", []option{privileged, mounts("/srv")}, nil},
		{"a privileged workload of a legacy v1 scheduler is refused by the node's policy", policy.Baseline, []option{privileged}, []string{`policy "baseline"`, "PERSYS_POLICY"}},
		{"a privileged workload of an admin is refused by the node's policy", policy.Baseline, append(ours, privileged, adminsOnly), []string{`policy "baseline"`, "PERSYS_POLICY"}},
		{"a mount of a scheduler's data folder is refused, also for an admin", "", append(ours, adminsOnly, mounts(scheduler)), []string{"not allowed on this node", "rule protected_paths"}},
		{"a mount of a scheduler's data folder is refused, also if a legacy v1 scheduler orders it", "", []option{mounts(scheduler + "/raft")}, []string{"rule protected_paths"}},
		{"a mount of the agent's state file is refused, although the scheduler's policy allows every path", "", append(ours, adminsOnly, mounts("STATE"), under("kinds: ['*']\nimages: ['*']\nusers: ['*']\nhost_paths: [{path: /}]\n")), []string{"rule protected_paths", "state.db"}},
		{"a mount of the agent's state file runs if an admin orders it and no policy applies", "", append(ours, adminsOnly, mounts("STATE")), nil},
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
				t.Errorf("the failure_reason of the refused workload is %q, want INVALID_SPECIFICATION", got)
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
