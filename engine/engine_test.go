package engine

import (
	"strings"
	"testing"
	"time"
)

// TestRulesAcceptAndRefuse has two lists of values for each rule. It checks that the rule accepts the values of
// the first and refuses those of the second.
func TestRulesAcceptAndRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		rule      func(string) string
		good, bad []string
	}{
		"Image":          {Image, []string{"nginx", "a/b:1", "localhost:5000/x@sha256:" + strings.Repeat("a", 64)}, []string{"Team/Web:1", "a b", "a:", strings.Repeat("a", 64)}},
		"Hostname":       {Hostname, []string{"a", "a-b.c", "a_b", "1", strings.Repeat("a", 64)}, []string{"", "-a", "a-", "a b", "ü", "a..b", strings.Repeat("a", 65)}},
		"User":           {User, []string{"", "0", "app", "1000:1000", ":0", "0:", "a.b@c", "-", "2147483647"}, []string{"-1", "2147483648", "0:2147483648", "99999999999999999999", "a:b:c", "a b", ":"}},
		"Restart":        {Restart, []string{"no", "always", "on-failure", "on-failure:0", "unless-stopped"}, []string{"", "never", "Always", "always:1", "on-failure:", "on-failure:-1", "on-failure:x"}},
		"MountTarget":    {MountTarget, []string{"/a", "/a/../b"}, []string{"", "a", "/", "//", "/a/.."}},
		"Object":         {Object, []string{"ab", "a.b-c_d"}, []string{"a", "-a", "a b", "a/b", strings.Repeat("a", 256)}},
		"LabelKey":       {LabelKey, []string{"a", "com.example/x", "org.label schema/é", "a b"}, []string{"", " ", "a\tb", "a\x00"}},
		"Platform":       {Platform, []string{"linux", "linux/amd64", "linux/arm/v7", "arm64", "Linux/AMD64"}, []string{"windows/amd64", "linus", "linux/", "linux/amd65", "linux/arm/v7/x"}},
		"Capability":     {Capability, []string{"ALL", "all", "NET_ADMIN", "cap_bpf"}, []string{"", "CAP_", "ADMIN", "NET-ADMIN"}},
		"SecurityOption": {SecurityOption, []string{"no-new-privileges", "no-new-privileges=false", "seccomp=unconfined", "label:disable", "systempaths=unconfined"}, []string{"", "x", "x=y", "seccomp=", "no-new-privileges=maybe", "systempaths=all"}},
		"CPUSet":         {CPUSet, []string{"0", "0-3", "1,3,5-7", "2-2"}, []string{"", "-1", "3-", "3-1", "a", "0,", "9999"}},
		"DeviceRule":     {DeviceRule, []string{"c 1:3 rwm", "a *:* r"}, []string{"", "c 1 r", "d 1:1 r", "c 1:1 x"}},
		"Tmpfs":          {Tmpfs, []string{"/a", "/a:ro,size=1g,mode=0700", "/a:"}, []string{"a", "/", "/a:size", "/a:size=x", "/a:mode=9", "/a:uid=app", "/a:what"}},
		"Propagation":    {Propagation, []string{"", "rslave"}, []string{"x"}},
		"Expose":         {Expose, []string{"1", "65535", "1-2/udp", "80/sctp"}, []string{"", "0", "65536", "2-1", "80/icmp", "a", "1-", "-1"}},
		"MAC":            {MAC, []string{"52:54:00:12:34:56", "52-54-00-12-34-56"}, []string{"", "52:54", "53:54:00:12:34:56", "00:00:00:00:00:00", "52:54:00:12:34:5g"}},
		"Address":        {Address, []string{"10.0.0.1", "::1"}, []string{"", "10.0.0", "a", "10.0.0.1/8"}},
		"IPv4":           {IPv4, []string{"10.0.0.1"}, []string{"::1", "::ffff:10.0.0.1", "x"}},
		"IPv6":           {IPv6, []string{"::1"}, []string{"10.0.0.1", "fe80::1%eth0"}},
		"Subnet":         {Subnet, []string{"10.0.0.0/8", "fd00::/64"}, []string{"10.0.0.1", "10.0.0.1/8", "10.0.0.0/33"}},
		"HostAddress":    {HostAddress, []string{"10.0.0.1", "[::1]", "host-gateway"}, []string{"", "gateway", "10.0.0"}},
		"IPCMode":        {IPCMode, []string{"", "host", "none", "container:x", "service:x"}, []string{"x", "container:", "pod:x"}},
		"PIDMode":        {PIDMode, []string{"", "host", "container:x"}, []string{"private", "service:"}},
		"EnvName":        {EnvName, []string{"A", "a b"}, []string{"", "A=B", "\x00"}},
		"Text":           {Text, []string{"", "ä"}, []string{"\x00", "\xe9"}},
	} {
		for _, v := range c.good {
			if rule := c.rule(v); rule != "" {
				t.Errorf("rule %s refuses the valid value %q: %s", name, v, rule)
			}
		}
		for _, v := range c.bad {
			if c.rule(v) == "" {
				t.Errorf("rule %s accepts the invalid value %q", name, v)
			}
		}
	}
}

func TestRulesOfNumbers(t *testing.T) {
	is := func(what, rule string, taken bool) {
		t.Helper()
		if (rule == "") != taken {
			t.Errorf("for %s the check returned the rule %q, want a rule if the value must be refused, and \"\" otherwise", what, rule)
		}
	}
	is("the longest argument", Arg(131071), true)
	is("an argument that is too long", Arg(131072), false)
	is("arguments of the maximum total size", Args(2<<20), true)
	is("arguments above the maximum total size", Args(2<<20+1), false)
	is("a health check's time of 0, which selects the default", HealthTime(0), true)
	is("a health check's time of a millisecond, the minimum", HealthTime(time.Millisecond), true)
	is("less", HealthTime(time.Millisecond-1), false)
	is("a negative time in a health check", HealthTime(-1), false)
	is("a ulimit whose soft limit equals its hard limit", Ulimit("nofile", 5, 5), true)
	is("a ulimit without soft and hard limit", Ulimit("core", -1, -1), true)
	is("a ulimit with a soft limit only", Ulimit("core", 0, -1), true)
	is("a ulimit whose soft limit is above its hard limit", Ulimit("nofile", 6, 5), false)
	is("a ulimit without a soft limit, but with a hard limit", Ulimit("nofile", -1, 5), false)
	is("a ulimit below -1, which means no limit", Ulimit("nofile", -2, -2), false)
	is("RLIMIT_NOFILE", Ulimit("RLIMIT_NOFILE", 1, 1), false)
	is("a device with absolute paths", Device("/dev/a", "/dev/b", "rwm"), true)
	is("a device with a CDI name", Device("nvidia.com/gpu=all", "nvidia.com/gpu=all", "rwm"), true)
	is("a device with a relative path in the container", Device("/dev/a", "b", "rwm"), false)
	is("a network sysctl in a container with its own network", Sysctl("net/core/somaxconn", true, true), true)
	is("a network sysctl in a container on the node's network", Sysctl("net.core.somaxconn", false, true), false)
	is("an IPC sysctl in a container in the node's IPC namespace", Sysctl("fs.mqueue.msg_max", true, false), false)
	is("a sysctl of the whole node", Sysctl("kernel.panic", true, true), false)
	is("a health check with a command", HealthTest([]string{"CMD-SHELL", "a"}), true)
	is("the health check of the image", HealthTest(nil), true)
	is("a health check without a command", HealthTest([]string{"CMD"}), false)
	for _, c := range []struct {
		period, quota int64
		field         string
	}{{0, 0, ""}, {1000, 1000, ""}, {999, 0, "cpu_period"}, {1_000_001, 0, "cpu_period"}, {0, 999, "cpu_quota"}, {0, -1, ""}} {
		if field, _ := CPUTime(c.period, c.quota); field != c.field {
			t.Errorf("CPUTime of period %d µs and quota %d µs returned the wrong field %q, want %q", c.period, c.quota, field, c.field)
		}
	}
}

func TestGuestMACDependsOnClusterWorkloadAndCard(t *testing.T) {
	first := GuestMAC("c", "web", 0)
	if rule := MAC(first); rule != "" {
		t.Errorf("GuestMAC returned %s, which breaks the rule of MAC addresses: %s", first, rule)
	}
	if first != GuestMAC("c", "web", 0) || first == GuestMAC("c", "web", 1) || first == GuestMAC("d", "web", 0) || first == GuestMAC("c", "api", 0) {
		t.Errorf("GuestMAC must return %s again for the same cluster, workload and card, and another address if one of them differs", first)
	}
}
