package policy

// Names of the built-in policies. They always exist and cannot be changed.
const (
	Privileged = "privileged"
	Baseline   = "baseline"
	Restricted = "restricted"
)

// Builtin returns a built-in policy.
func Builtin(name string) (*Policy, bool) {
	switch name {
	case Privileged:
		return privileged(), true
	case Baseline:
		return baseline(), true
	case Restricted:
		return restricted(), true
	}
	return nil, false
}

// Builtins returns the built-in policies from the most permissive to the strictest.
func Builtins() []*Policy { return []*Policy{privileged(), baseline(), restricted()} }

func anything() []string { return []string{"*"} }

// privileged allows everything.
func privileged() *Policy {
	return &Policy{
		Name: Privileged, Description: "everything is allowed",
		Kinds: anything(), HostPaths: []HostPath{{Path: "/"}}, EngineSocket: true, Privileged: true,
		Capabilities: anything(), Devices: anything(), HostNamespaces: anything(), SecurityOptions: anything(), Users: anything(),
		Ports: anything(), Addresses: anything(), Images: anything(), Volumes: anything(), Networks: anything(), Disks: anything(),
	}
}

// baseline allows ordinary workloads, and denies them access to the host and to other workloads. It allows
// the capabilities that Docker gives to every container, and the sysctls that affect only the namespaces of
// the container.
func baseline() *Policy {
	return &Policy{
		Name: Baseline, Description: "ordinary workloads, kept from the host and from each other",
		Kinds: anything(),
		Capabilities: []string{
			"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
			"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
		},
		SecurityOptions: []string{
			"no-new-privileges=*", "seccomp=builtin", "log-driver=json-file", "log-driver=local", "log-driver=none", "runtime=runc",
			"sysctl=kernel.shm_rmid_forced", "sysctl=net.core.somaxconn", "sysctl=net.ipv4.ip_local_port_range",
			"sysctl=net.ipv4.ip_unprivileged_port_start", "sysctl=net.ipv4.ping_group_range", "sysctl=net.ipv4.tcp_keepalive_*",
			"sysctl=net.ipv4.tcp_syncookies",
		},
		Users: anything(), Ports: []string{"80", "443", "1024-65535"}, Addresses: anything(), Images: anything(),
		Networks: []string{"default"}, MaxPids: 32768,
	}
}

// restricted is for code that nobody has reviewed: it allows as few rights as possible.
func restricted() *Policy {
	p := baseline()
	p.Name, p.Description = Restricted, "hardened containers only: no root, no capabilities, limits required"
	p.Kinds = []string{"container", "compose"}
	p.Capabilities = []string{"NET_BIND_SERVICE"}
	p.SecurityOptions = []string{
		"no-new-privileges=true", "seccomp=builtin", "log-driver=json-file", "log-driver=local", "runtime=runc",
		"sysctl=net.ipv4.ip_unprivileged_port_start", "sysctl=net.core.somaxconn",
	}
	p.Users = []string{NonRoot}
	p.Ports = []string{"1024-65535"}
	p.Networks = nil
	p.Requires = []string{"user", "cap_drop", "cpu", "memory"}
	p.MaxPids = 4096
	return p
}
