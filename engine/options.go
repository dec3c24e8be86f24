package engine

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/go-units"
)

// Capability checks the name of a capability, in upper or lower case and with or without CAP_.
func Capability(s string) string {
	name := strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(s)), "CAP_")
	known := capabilities()
	if name == "ALL" || slices.Contains(known, name) {
		return ""
	}
	rule := "must be the name of a capability, such as NET_BIND_SERVICE, or ALL"
	for i, k := range known {
		known[i] = strings.ToLower(k)
	}
	if near := Nearest(name, known); near != "" {
		rule += "; did you mean " + strings.ToUpper(near) + "?"
	}
	return rule
}

// capabilities lists the capabilities of Linux 5.9 and later (capabilities(7)).
func capabilities() []string {
	return []string{
		"AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN", "DAC_OVERRIDE",
		"DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN",
		"MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "PERFMON", "SETFCAP", "SETGID",
		"SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT",
		"SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "WAKE_ALARM",
	}
}

// SecurityOption checks an entry of a container's security_opt.
func SecurityOption(s string) string {
	const rule = "must be an option of the engine, such as no-new-privileges=false or seccomp=unconfined"
	if s == "no-new-privileges" || s == "disable" {
		return ""
	}
	i := strings.IndexAny(s, "=:")
	if i < 0 || i+1 == len(s) {
		return rule
	}
	switch key, value := s[:i], s[i+1:]; key {
	case "no-new-privileges", "writable-cgroups":
		if _, err := strconv.ParseBool(value); err != nil {
			return "must be " + key + "=true or " + key + "=false"
		}
	case "systempaths":
		if value != "unconfined" {
			return "must be systempaths=unconfined"
		}
	case "apparmor", "label", "seccomp":
	default:
		return rule
	}
	return ""
}

// Sysctl checks the name of a kernel parameter. ownNetwork and ownIPC say whether the container has its own
// network and IPC namespaces.
func Sysctl(name string, ownNetwork, ownIPC bool) string {
	name = strings.ReplaceAll(name, "/", ".")
	ipc := []string{
		"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
		"kernel.shm_rmid_forced",
	}
	switch {
	case slices.Contains(ipc, name), strings.HasPrefix(name, "fs.mqueue."):
		if !ownIPC {
			return "must not be set with ipc: host, because it would change the node's setting"
		}
	case strings.HasPrefix(name, "net."):
		if !ownNetwork {
			return "must not be set with network_mode: host, because it would change the node's setting"
		}
	case name == "kernel.domainname":
	default:
		return "is not a kernel parameter that a container can have of its own (net.*, fs.mqueue.*, kernel.msg*, kernel.sem, kernel.shm*); set it on the node"
	}
	return ""
}

// Ulimit checks the name of a ulimit, and its soft and hard limit; -1 means no limit.
func Ulimit(name string, soft, hard int64) string {
	known := []string{
		"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
		"rttime", "sigpending", "stack",
	}
	switch {
	case !slices.Contains(known, name):
		return "is not the name of a limit; the names are " + strings.Join(known, ", ")
	case soft < -1 || hard < -1:
		return "must be 0 or more, or -1 for no limit"
	case hard >= 0 && (soft > hard || soft < 0):
		return fmt.Sprintf("soft must be at most hard (%d)", hard)
	}
	return ""
}

// CPUSet checks a list of processors, such as 0-3,7.
func CPUSet(s string) string {
	for part := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(low, 10, 13)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(high, 10, 13)
		}
		if err != nil || last < first {
			return "must be processors and ranges of them, such as 0-3 or 0,2"
		}
	}
	return ""
}

// CPUPeriod is the default of cpu_period, and MinCPUQuota the smallest cpu_quota that the kernel accepts, in microseconds.
const (
	CPUPeriod   = 100_000
	MinCPUQuota = 1000
)

// CPUTime checks the period and the quota of a container's CPU time, in microseconds; 0 selects the default.
// It returns the field that is wrong and the rule that it breaks.
func CPUTime(period, quota int64) (field, rule string) {
	switch {
	case period != 0 && (period < 1000 || period > 1_000_000):
		return "cpu_period", "must be 1000 to 1000000 microseconds"
	case quota > 0 && quota < MinCPUQuota:
		return "cpu_quota", "must be at least 1000 microseconds"
	}
	return "", ""
}

// Device checks a device: its path on the host or its CDI name, its path in the container, and its
// permissions.
func Device(source, target, permissions string) string {
	switch cdi := strings.Contains(source, "/") && strings.Contains(source, "=") && !path.IsAbs(source); {
	case cdi:
	case !path.IsAbs(source):
		return "must begin with an absolute path on the node, such as /dev/fuse"
	case path.Clean(source) != source:
		return "must be a path without .., //, or a / at the end"
	case target != "" && !path.IsAbs(target):
		return "must have an absolute path in the container"
	case strings.Trim(permissions, "rwm") != "" || len(permissions) > 3:
		return "must have permissions of r, w and m"
	}
	return ""
}

var (
	cgroupPattern = regexp.MustCompile(`^[acb] ([0-9]+|\*):([0-9]+|\*) [rwm]{1,3}$`)
	sizePattern   = regexp.MustCompile(`^[0-9]+[kKmMgGtT%]?$`)
	modePattern   = regexp.MustCompile(`^0?[0-7]{1,4}$`)
	numberPattern = regexp.MustCompile(`^[0-9]+$`)
)

// DeviceRule checks an entry of a container's device_cgroup_rules.
func DeviceRule(s string) string {
	if !cgroupPattern.MatchString(s) {
		return `must be like "c 1:3 rwm": type a, b or c, major:minor, and permissions`
	}
	return ""
}

// Tmpfs checks a tmpfs mount in the form PATH[:OPTIONS].
func Tmpfs(s string) string {
	target, options, _ := strings.Cut(s, ":")
	if rule := MountTarget(target); rule != "" {
		return rule
	}
	values := map[string]*regexp.Regexp{
		"size": sizePattern, "nr_blocks": sizePattern, "nr_inodes": sizePattern, "mode": modePattern, "uid": numberPattern, "gid": numberPattern, "mpol": nil,
	}
	flags := []string{
		"", "async", "atime", "defaults", "dev", "diratime", "dirsync", "exec", "mand", "noatime", "nodev", "nodiratime", "noexec",
		"nomand", "norelatime", "nostrictatime", "nosuid", "private", "relatime", "rprivate", "ro", "rw", "rshared", "rslave",
		"shared", "slave", "strictatime", "suid", "sync",
	}
	for option := range strings.SplitSeq(options, ",") {
		key, value, has := strings.Cut(option, "=")
		form, known := values[key]
		switch {
		case has && !known, !has && !slices.Contains(flags, option):
			return fmt.Sprintf("has no option %q; write for example /run:size=64m,mode=1777", option)
		case has && form != nil && !form.MatchString(value):
			return fmt.Sprintf("has an invalid value in %q; write for example size=64m or mode=1777", option)
		}
	}
	return ""
}

// Propagation checks the propagation mode of a bind mount, which decides how mounts below it are shared.
func Propagation(s string) string {
	return oneOf(s, "private", "rprivate", "rshared", "rslave", "shared", "slave")
}

func oneOf(s string, words ...string) string {
	if s == "" || slices.Contains(words, s) {
		return ""
	}
	return "must be one of " + strings.Join(words, ", ")
}

// LogOption returns the rule that an option of a logging driver breaks, or "". It checks only the drivers
// json-file and local.
func LogOption(driver string, options map[string]string) (key, rule string) {
	if driver != "json-file" && driver != "local" {
		return "", ""
	}
	known := []string{"compress", "max-buffer-size", "max-file", "max-size", "mode"}
	if driver == "json-file" {
		known = append(known, "env", "env-regex", "labels", "labels-regex", "tag")
	}
	positive := func(v string) bool { n, err := strconv.Atoi(v); return err == nil && n >= 1 }
	size := func(v string) bool { _, err := units.FromHumanSize(v); return v == "-1" || err == nil }
	boolean := func(v string) bool { _, err := strconv.ParseBool(v); return err == nil }
	for _, key := range slices.Sorted(maps.Keys(options)) {
		v := options[key]
		switch {
		case !slices.Contains(known, key):
			slices.Sort(known)
			return key, fmt.Sprintf("is not an option of the driver %s; its options are %s", driver, strings.Join(known, ", "))
		case key == "max-file" && !positive(v):
			return key, "must be a number of files, at least 1"
		case (key == "max-size" || key == "max-buffer-size") && !size(v):
			return key, "must be a size such as 10m"
		case key == "compress" && !boolean(v):
			return key, "must be true or false"
		case key == "mode" && v != "blocking" && v != "non-blocking":
			return key, "must be blocking or non-blocking"
		case key == "max-buffer-size" && options["mode"] != "non-blocking":
			return key, "is for mode: non-blocking"
		}
	}
	if on, _ := strconv.ParseBool(options["compress"]); on && driver == "json-file" {
		if files, _ := strconv.Atoi(options["max-file"]); files < 2 || cmp.Or(options["max-size"], "-1") == "-1" {
			return "compress", "needs max-size and a max-file of at least 2"
		}
	}
	return "", ""
}
