package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Policy lists the things that workloads may ask of the machine. Each list names what is allowed; an empty
// list allows nothing. The entry "*" allows everything. An entry with "*" at its end allows every text that
// begins with the part before the "*".
type Policy struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description,omitempty"`

	// Kinds are the kinds of workloads that may run: container, compose, vm.
	Kinds []string `yaml:"kinds"`

	// HostPaths are the paths of the host that may be mounted, each with everything below it.
	HostPaths []HostPath `yaml:"host_paths,omitempty"`
	// EngineSocket allows mounts that reach the socket of a container engine or of libvirt, or an engine's folder.
	EngineSocket bool `yaml:"engine_socket,omitempty"`
	Privileged   bool `yaml:"privileged,omitempty"`
	// Capabilities are the capabilities that a container may add to the engine's default capabilities.
	Capabilities []string `yaml:"capabilities,omitempty"`
	// Devices are the devices of the host that a workload may use; the word gpu stands for GPUs.
	Devices []string `yaml:"devices,omitempty"`
	// HostNamespaces are the namespaces that a container may share with the host: network, pid, ipc, uts,
	// user, cgroup. Only "*" also allows a container to share namespaces with a container of another
	// workload.
	HostNamespaces []string `yaml:"host_namespaces,omitempty"`
	// SecurityOptions are options that a container may have, such as no-new-privileges=false,
	// seccomp=unconfined, sysctl=net.*, runtime=*, platform=linux/amd64, log-driver=syslog.
	SecurityOptions []string `yaml:"security_options,omitempty"`
	// Users are the users that containers may run as: names, numbers, non-root, or "*", which includes the
	// user that the image names.
	Users []string `yaml:"users"`

	// Ports are the ports of the host, or ranges of them, that may be published. A port that the engine
	// chooses is always allowed.
	Ports []string `yaml:"ports,omitempty"`
	// Addresses are the addresses of the host at which ports may be published; "*" also allows a port at all
	// addresses at once.
	Addresses []string `yaml:"addresses,omitempty"`

	// Images are the images that containers may use, by registry and repository: docker.io/library/*,
	// registry.example.com/shop/*.
	Images []string `yaml:"images"`
	// ImageDigest requires a digest in every image reference.
	ImageDigest bool `yaml:"image_digest,omitempty"`
	// ImageKeys requires a digest and a signature of every image of a container or stack. It does not apply to disk
	// images of virtual machines. Each entry is a public key in base64 (DER, PKIX); one of the keys must verify a
	// signature of the image. An empty list requires no signature.
	ImageKeys []string `yaml:"image_keys,omitempty"`

	// Volumes are the engine's volumes that a stack may use in addition to the volumes that are created for it:
	// external volumes, and volumes with an explicit name or driver.
	Volumes []string `yaml:"volumes,omitempty"`
	// Networks are the networks that a workload may use: external networks for stacks, libvirt networks and
	// bridges for virtual machines. An entry subnet=172.30.0.0/16 allows networks of a stack whose ipam
	// setting chooses a subnet within 172.30.0.0/16.
	Networks []string `yaml:"networks,omitempty"`
	// Disks are the existing disks and images that a virtual machine may use: files, rbd:pool/image, and
	// images in a folder.
	Disks []string `yaml:"disks,omitempty"`

	// Requires lists the protections that every container must have. user: it does not run as root. cap_drop:
	// all capabilities are dropped. cpu, memory: a limit is set.
	Requires []string `yaml:"requires,omitempty"`

	// Limits of one workload: millicores, MiB, GB, and the number of processes of one container. 0 means no
	// limit.
	MaxCPU    int64 `yaml:"max_cpu_millicores,omitempty"`
	MaxMemory int64 `yaml:"max_memory_mib,omitempty"`
	MaxDisk   int64 `yaml:"max_disk_gb,omitempty"`
	MaxPids   int64 `yaml:"max_pids,omitempty"`
	// Default limits for a container or stack that sets no limits, in millicores and MiB. 0 means no default.
	DefaultCPU    int64 `yaml:"default_cpu_millicores,omitempty"`
	DefaultMemory int64 `yaml:"default_memory_mib,omitempty"`

	// Limits of one namespace: the number of its workloads, and the bytes of their specifications. 0 means no
	// limit.
	MaxWorkloads int64 `yaml:"max_workloads,omitempty"`
	MaxSpecBytes int64 `yaml:"max_spec_bytes,omitempty"`
}

// HostPath is a folder or file of the host that may be mounted.
type HostPath struct {
	Path string `yaml:"path"`
	// ReadOnly allows only mounts that are read-only.
	ReadOnly bool `yaml:"read_only,omitempty"`
}

// The words that the lists of a policy may contain.
var (
	kinds      = [...]string{"container", "compose", "vm"}
	namespaces = [...]string{"network", "pid", "ipc", "uts", "user", "cgroup"}
	required   = [...]string{"user", "cap_drop", "cpu", "memory"}
)

// The largest values that a policy may contain.
const (
	maxEntries = 256  // maximum number of entries in one list of a policy
	maxText    = 1024 // bytes of one entry
	maxPort    = 65535
)

// List is one list of a policy, with its name in the YAML document.
type List struct {
	Name    string
	Entries *[]string
}

// Lists returns the lists of p in the order of the YAML document.
func (p *Policy) Lists() []List {
	return []List{
		{"kinds", &p.Kinds}, {"capabilities", &p.Capabilities}, {"devices", &p.Devices}, {"host_namespaces", &p.HostNamespaces},
		{"security_options", &p.SecurityOptions}, {"users", &p.Users}, {"ports", &p.Ports}, {"addresses", &p.Addresses},
		{"images", &p.Images}, {"volumes", &p.Volumes}, {"networks", &p.Networks}, {"disks", &p.Disks}, {"requires", &p.Requires},
		{"image_keys", &p.ImageKeys},
	}
}

// Amount is one limit or default of a policy that is a number, with its name in the YAML document.
type Amount struct {
	Name  string
	Value *int64
}

// Amounts returns the numbers of p in the order of the YAML document.
func (p *Policy) Amounts() []Amount {
	return []Amount{
		{"max_cpu_millicores", &p.MaxCPU}, {"max_memory_mib", &p.MaxMemory}, {"max_disk_gb", &p.MaxDisk}, {"max_pids", &p.MaxPids},
		{"default_cpu_millicores", &p.DefaultCPU}, {"default_memory_mib", &p.DefaultMemory},
		{"max_workloads", &p.MaxWorkloads}, {"max_spec_bytes", &p.MaxSpecBytes},
	}
}

// Fault describes the first invalid field of a policy; "" if all fields are valid. It does not check the
// policy's name.
func (p *Policy) Fault() string {
	if len(p.Description) > maxText {
		return fmt.Sprintf("description: %d bytes, at most %d", len(p.Description), maxText)
	}
	for _, l := range p.Lists() {
		if len(*l.Entries) > maxEntries {
			return fmt.Sprintf("%s: %d entries, at most %d", l.Name, len(*l.Entries), maxEntries)
		}
		for i, e := range *l.Entries {
			if fault := entryFault(e); fault != "" {
				return fmt.Sprintf("%s[%d]: %q %s", l.Name, i, clip(e), fault)
			}
		}
	}
	for _, w := range []struct {
		name  string
		list  []string
		known []string
	}{{"kinds", p.Kinds, kinds[:]}, {"host_namespaces", p.HostNamespaces, namespaces[:]}, {"requires", p.Requires, required[:]}} {
		for i, e := range w.list {
			if !slices.Contains(w.known, e) && (e != "*" || w.name == "requires") {
				return fmt.Sprintf("%s[%d]: %q is none of %s", w.name, i, clip(e), strings.Join(w.known, ", "))
			}
		}
	}
	for i, e := range p.Ports {
		if _, _, ok := portRange(e); !ok {
			return fmt.Sprintf("ports[%d]: %q is no port and no range such as 1024-65535", i, clip(e))
		}
	}
	if len(p.HostPaths) > maxEntries {
		return fmt.Sprintf("host_paths: %d entries, at most %d", len(p.HostPaths), maxEntries)
	}
	for i, h := range p.HostPaths {
		if fault := entryFault(h.Path); fault != "" {
			return fmt.Sprintf("host_paths[%d].path: %q %s", i, clip(h.Path), fault)
		}
		if !strings.HasPrefix(h.Path, "/") || Clean(h.Path) != h.Path {
			return fmt.Sprintf("host_paths[%d].path: %q must be an absolute path without . and .. and without a final /", i, clip(h.Path))
		}
	}
	for _, a := range p.Amounts() {
		if *a.Value < 0 || *a.Value > 1<<50 {
			return fmt.Sprintf("%s: %d must be 0 (no limit) or more", a.Name, *a.Value)
		}
	}
	if p.MaxCPU > 0 && p.DefaultCPU > p.MaxCPU {
		return fmt.Sprintf("default_cpu_millicores: %d is more than max_cpu_millicores, %d", p.DefaultCPU, p.MaxCPU)
	}
	if p.MaxMemory > 0 && p.DefaultMemory > p.MaxMemory {
		return fmt.Sprintf("default_memory_mib: %d is more than max_memory_mib, %d", p.DefaultMemory, p.MaxMemory)
	}
	return ""
}

func entryFault(e string) string {
	switch {
	case e == "":
		return "must not be empty"
	case len(e) > maxText:
		return fmt.Sprintf("has %d bytes, at most %d", len(e), maxText)
	case strings.ContainsFunc(e, func(r rune) bool { return r < ' ' || r == 0x7f || r == '�' }):
		return "must be printable text"
	case strings.Contains(strings.TrimSuffix(e, "*"), "*"):
		return "may have * at its end only"
	}
	return ""
}

// portRange parses an entry of Policy.Ports.
func portRange(e string) (low, high int, ok bool) {
	if e == "*" {
		return 1, maxPort, true
	}
	from, to, ranged := strings.Cut(e, "-")
	low, err := strconv.Atoi(from)
	if err != nil {
		return 0, 0, false
	}
	high = low
	if ranged {
		if high, err = strconv.Atoi(to); err != nil {
			return 0, 0, false
		}
	}
	return low, high, low >= 1 && low <= high && high <= maxPort
}

// Clean returns path.Clean of a path, as an absolute path.
func Clean(p string) string {
	var out []string
	for part := range strings.SplitSeq(p, "/") {
		switch part {
		case "", ".":
		case "..":
			out = out[:max(0, len(out)-1)]
		default:
			out = append(out, part)
		}
	}
	return "/" + strings.Join(out, "/")
}

// Below reports whether path is the folder dir or lies below it. Both must be clean.
func Below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// matches reports whether one of the patterns in a list of a policy allows a value.
func matches(list []string, value string) bool {
	return slices.ContainsFunc(list, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(value, prefix)
		}
		return p == value
	})
}

func clip(s string) string {
	if len(s) > 128 {
		return strings.ToValidUTF8(s[:128], "")
	}
	return s
}
