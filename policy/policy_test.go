package policy

import (
	"strings"
	"testing"
)

// TestJudgeChecksEachRule checks each rule of a policy with a value that the policy allows and one
// that it refuses.
func TestJudgeChecksEachRule(t *testing.T) {
	some := &Policy{
		Name: "some", Kinds: []string{"container"}, HostPaths: []HostPath{{Path: "/srv/shop"}, {Path: "/usr/share", ReadOnly: true}},
		Capabilities: []string{"NET_*"}, Devices: []string{"/dev/fuse"}, HostNamespaces: []string{"ipc"}, SecurityOptions: []string{"sysctl=net.*"},
		Users: []string{"non-root", "www"}, Ports: []string{"80", "8000-8010"}, Addresses: []string{"10.0.0.1"},
		Images: []string{"registry.example.com/shop/*"}, ImageDigest: true, Volumes: []string{"shared"}, Networks: []string{"lan", "subnet=172.30.0.0/16"},
		Disks: []string{"/images/*"}, Requires: []string{"memory"}, MaxMemory: 100, MaxPids: 50,
	}
	sum := "@sha256:" + strings.Repeat("0", 64)
	for _, tt := range []struct {
		rule, value, refused string // refused is the rule by which the ask is refused, "" if it is allowed
	}{
		{RulePrivileged, "true", "privileged"},
		{RuleHostPath, "/srv/shop", ""},
		{RuleHostPath, "/srv/shop/a/b", ""},
		{RuleHostPath, "/srv/shop/../../etc", "host_paths"},
		{RuleHostPath, "/srv/shopping", "host_paths"},
		{RuleHostPath, "/srv", "host_paths"},
		{RuleHostPath, "/usr/share/doc", "host_paths"},
		{RuleHostPathRead, "/usr/share/doc", ""},
		{RuleHostPathRead, "/etc", "host_paths"},
		{RuleHostPathRead, "/var/run/docker.sock", "engine_socket"},
		{RuleHostPathRead, "/", "engine_socket"},
		{RuleHostPath, "/run", "engine_socket"},
		{RuleEngineSocket, "true", "engine_socket"},
		{RuleCapability, "NET_ADMIN", ""},
		{RuleCapability, "SYS_ADMIN", "capabilities"},
		{RuleDevice, "/dev/fuse", ""},
		{RuleDevice, "/dev/sda", "devices"},
		{RuleHostNS, "ipc", ""},
		{RuleHostNS, "ipc of container:x", "host_namespaces"},
		{RuleHostNS, "pid", "host_namespaces"},
		{RuleSecurity, "sysctl=net.ipv4.ip_forward", ""},
		{RuleSecurity, "seccomp=unconfined", "security_options"},
		{RuleUser, "1000:0", ""},
		{RuleUser, "www", ""},
		{RuleUser, "0", "users"},
		{RuleUser, "+0", "users"},
		{RuleUser, "root", "users"},
		{RuleUser, "alice", "users"}, // refused, because an image may give the user alice the number 0
		{RuleUser, "non-root", "users"},
		{RuleLacks, LacksUser, "users"},
		{RuleLacks, "user,cpu", ""},
		{RuleLacks, "cpu,memory", "requires"},
		{RulePort, PortValue("10.0.0.1", "80", "tcp"), ""},
		{RulePort, PortValue("10.0.0.1", "0", "tcp"), ""},
		{RulePort, PortValue("10.0.0.1", "8000-8009", "tcp"), ""},
		{RulePort, PortValue("10.0.0.1", "8009-8011", "tcp"), "ports"},
		{RulePort, PortValue("10.0.0.1", "22", "tcp"), "ports"},
		{RulePort, PortValue("10.0.0.1", "${X}", "tcp"), "ports"},
		{RulePort, PortValue("", "80", "tcp"), "addresses"},
		{RuleImage, "registry.example.com/shop/web:1" + sum, ""},
		{RuleImage, "registry.example.com:5000/shop/web:1" + sum, "images"},
		{RuleImage, "registry.example.com/shop/web:1", "image_digest"},
		{RuleVolume, "shared", ""},
		{RuleVolume, "bank_data", "volumes"},
		{RuleNetwork, "lan", ""},
		{RuleNetwork, "br0", "networks"},
		{RuleNetwork, "subnet=172.30.4.0/24", ""},
		{RuleNetwork, "subnet=172.30.0.0/15", "networks"},
		{RuleNetwork, "subnet=10.0.0.0/25", "networks"},
		{RuleNetwork, "subnet=x", "networks"},
		{RuleDisk, "/images/debian.qcow2", ""},
		{RuleDisk, "/dev/sda", "disks"},
		{RulePids, "50", ""},
		{RulePids, "51", "max_pids"},
		{RulePids, Unlimited, "max_pids"},
		{RuleLimits, LimitsValue(0, 50, 2), ""},
		{RuleLimits, LimitsValue(0, 51, 2), "max_memory_mib"},
		{RuleLimits, LimitsValue(100, 0, 1), "max_memory_mib"},
		{RuleLimits, "x", "max_memory_mib"},
		{"of_a_later_version", "x", "of_a_later_version"},
	} {
		t.Run(tt.rule+" "+tt.value, func(t *testing.T) {
			got := Judge(some, Workload{Kind: "container", Memory: 1, Asks: []Ask{{Rule: tt.rule, Value: tt.value, Field: "at"}}})
			rules := make([]string, len(got))
			for i, v := range got {
				rules[i] = v.Rule
				if v.Policy != "some" || v.Field != "at" || v.Allows == "" {
					t.Errorf("Judge returned the violation %+v, want policy \"some\", field \"at\", and the allowed values", v)
				}
			}
			if s := strings.Join(rules, " "); s != tt.refused {
				t.Errorf("Judge refuses the ask by the rules %q, want %q (empty: it is allowed)", s, tt.refused)
			}
			if all := Judge(privileged(), Workload{Kind: "container", Asks: []Ask{{Rule: tt.rule, Value: tt.value}}}); len(all) > 0 {
				t.Errorf("the built-in policy privileged must allow every ask, but refuses: %s", Text(all))
			}
			if none := Judge(&Policy{Name: "none", Kinds: []string{"*"}}, Workload{Kind: "container", Asks: []Ask{{Rule: tt.rule, Value: tt.value}}}); len(none) == 0 &&
				tt.rule != RuleLacks && tt.rule != RulePids && tt.rule != RuleLimits {
				t.Error("a policy without entries must refuse the ask, but allows it")
			}
		})
	}
	for _, tt := range []struct {
		name string
		w    Workload
		rule string
	}{
		{"a kind that is not listed is refused", Workload{Kind: "vm", Memory: 1}, "kinds"},
		{"memory above the limit is refused", Workload{Kind: "container", Memory: 101}, "max_memory_mib"},
		{"memory without a limit is refused", Workload{Kind: "container"}, "max_memory_mib"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Judge(some, tt.w); len(got) != 1 || got[0].Rule != tt.rule {
				t.Errorf("Judge returns the violations %+v, want one violation of rule %s", got, tt.rule)
			}
		})
	}
	stack := Workload{Kind: "container", Memory: 1, Asks: []Ask{
		{RuleLimits, LimitsValue(0, 60, 1), "services.a"}, {RuleLimits, LimitsValue(0, 60, 1), "services.b"},
	}}
	want := `services: "120" is not allowed by policy "some" (rule max_memory_mib): all containers of the stack together may have at most 100`
	if got := Text(Judge(some, stack)); got != want {
		t.Errorf("for two services that are together above the maximum, the violations are %q, want %q", got, want)
	}
	many := Workload{Kind: "container", Memory: 1}
	for range 100 {
		many.Asks = append(many.Asks, Ask{Rule: RulePrivileged})
	}
	if n := len(Judge(some, many)); n != MaxViolations {
		t.Errorf("for 100 refused asks Judge returns %d violations, want %d", n, MaxViolations)
	}
}

// TestBuiltinPoliciesAreOrdered checks that the built-in policies are valid, and that each allows less than
// the previous one.
func TestBuiltinPoliciesAreOrdered(t *testing.T) {
	for _, p := range Builtins() {
		if fault := p.Fault(); fault != "" {
			t.Errorf("built-in policy %s must be valid, but has the fault: %s", p.Name, fault)
		}
	}
}

// TestSignedImagesNeedADigest: a policy with image_keys refuses an image without a digest, because the signature of
// such an image cannot be checked.
func TestSignedImagesNeedADigest(t *testing.T) {
	p := &Policy{Name: "signed", Kinds: []string{"container"}, Images: []string{"*"}, Users: []string{"*"}, ImageKeys: []string{"key"}}
	for value, want := range map[string]string{"docker.io/library/web:1": RuleSigned, "docker.io/library/web@sha256:00": ""} {
		rule := ""
		for _, v := range Judge(p, Workload{Kind: "container", Asks: []Ask{{Rule: RuleImage, Value: value, Field: "container.image"}}}) {
			rule += v.Rule
		}
		if rule != want {
			t.Errorf("image %s is refused by the rules %q, want %q", value, rule, want)
		}
	}
}
