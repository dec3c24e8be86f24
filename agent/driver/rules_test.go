package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/policy"
)

func builtin(name string) Rule {
	p, _ := policy.Builtin(name)
	return Rule{Policy: p, Next: "next step"}
}

// TestRulesFollowLinks: before a path of a workload is compared with the paths of a policy, symbolic links in
// both are resolved.
func TestRulesFollowLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"real/shop", "scheduler/raft", "state", "engine", "disks"} {
		if err := os.MkdirAll(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"srv": "real", "real/shop/out": "/etc", "real/shop/keys": at("scheduler/raft"), "real/shop/state": at("state"), "real/shop/engine": at("engine"), "vms": "disks", "disks/etc": "/etc",
	} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	shop := &policy.Policy{Name: "shop", Kinds: []string{"*"}, HostPaths: []policy.HostPath{{Path: at("srv/shop")}, {Path: at("state")}}, Disks: []string{at("vms/*")}}
	wide := builtin(policy.Privileged)
	for _, tt := range []struct {
		name  string
		rules Rules
		ask   policy.Ask
		want  []string // parts of the expected error; empty if the workload is allowed
	}{
		{"a folder that the policy allows", Rules{Policies: []Rule{{Policy: shop}}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("srv/shop/a")}, nil},
		{"the same folder by its real name", Rules{Policies: []Rule{{Policy: shop}}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("real/shop/a")}, nil},
		{"a symbolic link that leads out of the folder that the policy allows", Rules{Policies: []Rule{{Policy: shop, Next: "ask"}}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("srv/shop/out/ssh")},
			[]string{"at: ", strOf(at("srv/shop/out/ssh")), `policy "shop"`, "rule host_paths", "it leads to /etc/ssh", "; ask"}},
		{"a disk that the policy allows", Rules{Policies: []Rule{{Policy: shop}}}, policy.Ask{Rule: policy.RuleDisk, Value: at("vms/a.qcow2")}, nil},
		{"a disk path that leads through a symbolic link to another folder", Rules{Policies: []Rule{{Policy: shop}}}, policy.Ask{Rule: policy.RuleDisk, Value: at("vms/etc/shadow")}, []string{"rule disks", "/etc/shadow"}},
		{"a disk on the network", Rules{Policies: []Rule{wide}}, policy.Ask{Rule: policy.RuleDisk, Value: "rbd:pool/image"}, nil},

		{"the first policy allows a folder, the second refuses it", Rules{Policies: []Rule{wide, builtin(policy.Baseline)}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("real")},
			[]string{`policy "baseline"`, "rule host_paths", "next step"}},
		{"a folder that contains the agent's state file", Rules{Policies: []Rule{{Policy: shop}}, Private: []string{at("state/db")}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("state")}, []string{`policy "shop"`, "rule protected_paths", at("state/db")}},
		{"a folder that contains the agent's state file, under the policy privileged", Rules{Policies: []Rule{wide}, Private: []string{at("state/db")}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("state")}, nil},
		{"the engine's folder under a policy that allows its parent", Rules{Policies: []Rule{{Policy: shop}}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("srv/shop/engine")}, []string{"rule host_paths"}},
		{"the engine's folder as a disk", Rules{Policies: []Rule{{Policy: &policy.Policy{Name: "disks", Kinds: []string{"*"}, Disks: []string{"*"}}}}}, policy.Ask{Rule: policy.RuleDisk, Value: at("engine/layer")},
			[]string{"rule engine_socket", at("engine")}},
		{"the engine's folder under the policy privileged", Rules{Policies: []Rule{wide}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("engine")}, nil},

		{"a protected folder", Rules{Protected: []string{at("scheduler")}}, policy.Ask{Rule: policy.RuleHostPathRead, Value: at("scheduler/raft")}, []string{"at: ", "not allowed on this node", "rule protected_paths", "PERSYS_POLICY"}},
		{"a folder above the protected folder", Rules{Policies: []Rule{wide}, Protected: []string{at("scheduler")}}, policy.Ask{Rule: policy.RuleHostPathRead, Value: "/"}, []string{"rule protected_paths", at("scheduler")}},
		{"a symbolic link to the protected folder", Rules{Protected: []string{at("scheduler")}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("srv/shop/keys")}, []string{"it leads to " + at("scheduler/raft")}},
		{"a disk in the protected folder", Rules{Protected: []string{at("scheduler")}}, policy.Ask{Rule: policy.RuleDisk, Value: at("scheduler/raft")}, []string{"rule protected_paths"}},
		{"a mount above the usual data folder of schedulers", Rules{Policies: []Rule{wide}, Usual: []string{at("scheduler")}}, policy.Ask{Rule: policy.RuleHostPath, Value: dir}, []string{"rule protected_paths"}},
		{"a mount above a protected folder that does not exist", Rules{Protected: []string{at("none")}}, policy.Ask{Rule: policy.RuleHostPath, Value: dir}, []string{"rule protected_paths"}},
		{"a machine without a scheduler", Rules{Usual: []string{at("none")}}, policy.Ask{Rule: policy.RuleHostPath, Value: dir}, nil},
		{"the node's policy allows mounts of the protected folder", Rules{Protected: []string{at("scheduler")}, Open: []policy.HostPath{{Path: at("scheduler")}}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("scheduler/raft")}, nil},
		{"the node's policy allows only read-only mounts of the protected folder", Rules{Protected: []string{at("scheduler")}, Open: []policy.HostPath{{Path: at("scheduler"), ReadOnly: true}}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("scheduler")}, []string{"rule protected_paths"}},
		{"the node's policy allows mounts of a folder above the protected folder", Rules{Protected: []string{at("scheduler")}, Open: []policy.HostPath{{Path: dir}}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("scheduler")}, []string{"rule protected_paths"}},
		{"a path that is not protected", Rules{Policies: []Rule{wide}, Protected: []string{at("scheduler")}}, policy.Ask{Rule: policy.RuleHostPath, Value: at("real")}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.ask.Field = "at"
			err := Spec{Rules: &tt.rules}.Judge(Container, []policy.Ask{tt.ask}, []string{"/run/nowhere.sock", at("engine")})
			if tt.want == nil {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if ClassOf(err) != InvalidSpecification {
				t.Fatalf("Judge returned %v, want an error of class InvalidSpecification", err)
			}
			for _, word := range tt.want {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error of Judge lacks %q: %v", word, err)
				}
			}
		})
	}
	if err := (Spec{}).Judge(Container, []policy.Ask{{Rule: policy.RulePrivileged, Value: "true"}}, nil); err != nil {
		t.Errorf("without rules, Judge returned %v, want no error", err)
	}
}

func strOf(s string) string { return `"` + s + `"` }

// TestRulesJudgeAmounts: a policy limits how much CPU, memory and disk a scheduler may reserve for a workload.
// The error names at most three violated limits.
func TestRulesJudgeAmounts(t *testing.T) {
	small := &policy.Policy{Name: "small", Kinds: []string{"container"}, MaxMemory: 64, MaxCPU: 100}
	err := Spec{Rules: &Rules{Policies: []Rule{{Policy: small}}, CPU: 100, Memory: 65}}.Judge(Container, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "rule max_memory_mib") || strings.Contains(err.Error(), "max_cpu") {
		t.Errorf("a workload reserves 65 MiB under a policy with max_memory_mib 64: Judge returned %v, want an error about max_memory_mib only", err)
	}
	caps := make([]policy.Ask, 5)
	for i := range caps {
		caps[i] = policy.Ask{Rule: policy.RuleCapability, Value: "SYS_ADMIN", Field: "at"}
	}
	err = Spec{Rules: &Rules{Policies: []Rule{{Policy: small}}, CPU: 1, Memory: 1}}.Judge(Container, caps, nil)
	if err == nil || strings.Count(err.Error(), "SYS_ADMIN") != 3 {
		t.Errorf("Judge returned %v for five violations, want an error that names three", err)
	}
}

// TestDefaultProcessLimitOfAPolicy: a container that names no process limit gets no more processes than its policies
// allow.
func TestDefaultProcessLimitOfAPolicy(t *testing.T) {
	limited := func(pids ...int64) Spec {
		r := &Rules{}
		for _, n := range pids {
			r.Policies = append(r.Policies, Rule{Policy: &policy.Policy{MaxPids: n}})
		}
		return Spec{Rules: r}
	}
	for _, c := range []struct {
		spec Spec
		want int64
	}{{Spec{}, DefaultPids}, {limited(0, 32768), DefaultPids}, {limited(0, 200, 100), 100}} {
		if got := c.spec.Pids(); got != c.want {
			t.Errorf("a container without a process limit may have %d processes, want %d", got, c.want)
		}
	}
}
