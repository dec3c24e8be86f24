// Package composefile says for each key of a Compose file whether nodes honour, change, ignore or refuse it.
package composefile

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The treatments of a key of a Compose file.
const (
	Honoured   = "honoured"   // nodes honour the key: it has the same effect as in Compose itself
	Translated = "translated" // the key has another effect on nodes, which Note describes
	Ignored    = "ignored"    // has no effect on nodes
	Refused    = "refused"    // nodes do not start a stack with this key
)

// Key is a key of a Compose file, with its treatment by nodes.
type Key struct {
	Line    int
	Path    string // path of the key, for example services.web.deploy.placement
	Verdict string
	Note    string
}

// rule is the treatment of a key and of all keys below it, unless a rule with a longer path matches. A '*' in
// the path stands for one name that the author of the file chose.
type rule struct {
	path, verdict, note string
}

// rules lists the keys that nodes do not honour. The function honoured lists the other keys.
func rules() []rule {
	const own = "use constraints, tolerations and priority of the workload"
	return []rule{
		{"version", Ignored, "obsolete"},
		{"name", Translated, "the project is named after the workload"},
		{"models", Refused, "agents run no models"},
		{"services.*.attach", Ignored, "only for docker compose up in a terminal; the logs have the output of every service"},
		{"services.*.build", Refused, "nodes build no images: name one in image"},
		{"services.*.cpu_count", Refused, "for Windows: write cpus"},
		{"services.*.cpu_percent", Refused, "for Windows: write cpus"},
		{"services.*.cpu_rt_period", Refused, "needs an engine with a budget for real-time processes: use cap_add SYS_NICE and ulimits rtprio"},
		{"services.*.cpu_rt_runtime", Refused, "needs an engine with a budget for real-time processes: use cap_add SYS_NICE and ulimits rtprio"},
		{"services.*.credential_spec", Refused, "for Windows"},
		{"services.*.deploy.endpoint_mode", Ignored, "for Swarm"},
		{"services.*.deploy.labels", Ignored, "for Swarm; labels of the service reach containers"},
		{"services.*.deploy.mode", Ignored, "deploy.replicas sets the number of containers"},
		{"services.*.deploy.placement", Ignored, own},
		{"services.*.deploy.resources.limits", Honoured, "and reserved on the node, unless the workload itself has resources"},
		{"services.*.deploy.rollback_config", Ignored, "a failed update is tried again"},
		{"services.*.deploy.update_config", Ignored, "an update replaces all changed services at once"},
		{"services.*.develop", Ignored, "only for docker compose watch"},
		{"services.*.env_file", Honoured, "paths are those of the Git repository; .env holds compose.env"},
		{"services.*.isolation", Refused, "for Windows; on Linux the key runtime chooses an OCI runtime"},
		{"services.*.labels", Honoured, "except persys.*"},
		{"services.*.mem_swappiness", Translated, "only on nodes with cgroup v1"},
		{"services.*.models", Refused, "agents have no model runner"},
		{"services.*.oom_kill_disable", Translated, "only on nodes with cgroup v1"},
		{"services.*.ports", Honoured, "a name that is a service name is found in DNS, if the file is inline"},
		{"services.*.post_start", Honoured, "after each start by the agent, not after a restart by the engine"},
		{"services.*.pre_start", Translated, "only when a container is made, not when the agent starts one that has ended"},
		{"services.*.pre_stop", Translated, "within stop_grace_period; a hook that fails does not prevent the stop"},
		{"services.*.profiles", Translated, "enabled by COMPOSE_PROFILES; a specification has it in compose.env"},
		{"services.*.provider", Refused, "agents run containers only"},
		{"services.*.pull_policy", Translated, "always, missing and never; every other value counts as missing, but build as never"},
		{"services.*.pull_refresh_after", Ignored, "an update pulls the image again if pull_policy is always"},
		{"services.*.restart", Translated, "for exclusive workloads the engine restarts no container; the agent starts containers that have ended"},
		{"services.*.stop_grace_period", Honoured, "at most 10 min; default 30 s"},
		{"services.*.storage_opt", Refused, "resources.disk of the workload limits the disk on every node"},
		{"services.*.volumes", Honoured, "named volumes are kept in updates, and on a node that the stack moves away from; a delete removes them"},
		{"volumes", Honoured, "kept in updates, and on a node that the stack moves away from; a delete removes them, except external ones"},
	}
}

// honoured lists the keys of a file, of a service and of its deploy section that have the same effect as in
// Compose itself.
func honoured() []string {
	return []string{
		"include", "services", "networks", "secrets", "configs",
		"services.*.annotations", "services.*.blkio_config", "services.*.cap_add", "services.*.cap_drop", "services.*.cgroup",
		"services.*.cgroup_parent", "services.*.command", "services.*.configs", "services.*.container_name",
		"services.*.cpu_period", "services.*.cpu_quota",
		"services.*.cpu_shares", "services.*.cpus", "services.*.cpuset",
		"services.*.depends_on", "services.*.deploy", "services.*.deploy.replicas", "services.*.deploy.resources",
		"services.*.deploy.resources.reservations",
		"services.*.deploy.restart_policy", "services.*.device_cgroup_rules", "services.*.devices", "services.*.dns",
		"services.*.dns_opt", "services.*.dns_search", "services.*.domainname", "services.*.entrypoint", "services.*.environment",
		"services.*.expose", "services.*.extends", "services.*.external_links", "services.*.extra_hosts", "services.*.gpus",
		"services.*.group_add", "services.*.healthcheck", "services.*.hostname", "services.*.image", "services.*.init",
		"services.*.ipc", "services.*.label_file", "services.*.links", "services.*.logging",
		"services.*.mac_address", "services.*.mem_limit", "services.*.mem_reservation",
		"services.*.memswap_limit", "services.*.network_mode", "services.*.networks",
		"services.*.oom_score_adj", "services.*.pid", "services.*.pids_limit", "services.*.platform",
		"services.*.privileged", "services.*.read_only", "services.*.runtime",
		"services.*.scale", "services.*.secrets", "services.*.security_opt", "services.*.shm_size", "services.*.stdin_open",
		"services.*.stop_signal", "services.*.sysctls", "services.*.tmpfs", "services.*.tty",
		"services.*.ulimits", "services.*.use_api_socket", "services.*.user", "services.*.userns_mode", "services.*.uts",
		"services.*.volumes_from", "services.*.working_dir",
	}
}

// ErrNotCompose means that a file is not a mapping with services.
var ErrNotCompose = errors.New("must be a Compose file: a mapping with services")

// Keys returns the treatment of every key of a Compose file, in the order of the file. If nodes treat all
// keys below a key in the same way, only that key is listed.
func Keys(text string) ([]Key, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("the Compose file is %d bytes, at most %d", len(text), maxText)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode || value(doc.Content[0], "services") == nil {
		return nil, ErrNotCompose
	}
	verdicts := map[string]rule{}
	for _, path := range honoured() {
		verdicts[path] = rule{path, Honoured, ""}
	}
	for _, r := range rules() {
		verdicts[r.path] = r
	}
	w := walk{verdicts: verdicts}
	w.mapping(doc.Content[0], "", "", 0)
	if len(w.keys) >= maxKeys || w.visits > maxKeys {
		return nil, fmt.Errorf("must have fewer than %d keys", maxKeys)
	}
	return w.keys, nil
}

// Bounds of a Compose file, because YAML merges may repeat and nest mappings.
const (
	maxText  = 512 << 10
	maxKeys  = 50_000
	maxDepth = 20
)

type walk struct {
	verdicts map[string]rule
	keys     []Key
	visits   int // number of visited mappings, including empty ones
}

// mapping visits the keys of a mapping in the order of the file. pattern is the mapping's path in the form of the
// rules, with * for names that the author chose; shown is its path with these names.
func (w *walk) mapping(n *yaml.Node, pattern, shown string, depth int) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	w.visits++
	if n.Kind != yaml.MappingNode || depth > maxDepth || w.visits > maxKeys {
		return
	}
	for i := 0; i+1 < len(n.Content) && len(w.keys) < maxKeys; i += 2 {
		key, below := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			sources := []*yaml.Node{below}
			if below.Kind == yaml.SequenceNode {
				sources = below.Content
			}
			for _, s := range sources {
				w.mapping(s, pattern, shown, depth+1)
			}
			continue
		}
		w.key(n, key, below, pattern, shown, depth)
	}
}

func (w *walk) key(in, key, below *yaml.Node, pattern, shown string, depth int) {
	p, s := join(pattern, key.Value), join(shown, key.Value)
	if strings.HasPrefix(key.Value, "x-") && pattern != "services" {
		w.keys = append(w.keys, Key{key.Line, s, Ignored, "an extension"})
		return
	}
	if pattern == "services" { // the key is the name of a service
		w.mapping(below, "services.*", s, depth+1)
		return
	}
	r, ok := w.verdicts[p]
	if !ok {
		w.keys = append(w.keys, Key{key.Line, s, Refused, "Compose knows no such key here"})
		return
	}
	if p == "services.*.build" && value(in, "image") != nil {
		r.verdict, r.note = Ignored, "image is used"
	}
	if deeper(p) {
		w.mapping(below, p, s, depth+1)
		return
	}
	if p == "secrets" || p == "configs" {
		w.objects(below, s)
		return
	}
	w.keys = append(w.keys, Key{key.Line, s, r.verdict, r.note})
}

// objects adds a key for each top-level secret or config of the file.
func (w *walk) objects(n *yaml.Node, section string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	w.visits += len(n.Content)
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content) && len(w.keys) < maxKeys; i += 2 {
		key, of := n.Content[i], n.Content[i+1]
		out := Key{key.Line, join(section, key.Value), Honoured, ""}
		if of.Kind == yaml.AliasNode {
			of = of.Alias
		}
		if of.Kind == yaml.MappingNode {
			if external := value(of, "external"); external != nil && external.Value != "false" {
				name, kind := key.Value, strings.TrimSuffix(section, "s")
				if given := value(of, "name"); given != nil {
					name = given.Value
				}
				out.Verdict, out.Note = Translated, "the "+kind+" "+name+" of the namespace, as a file in memory: persysctl "+kind+" put "+name
				if on := value(of, "x-on-change"); on != nil {
					out.Note += "; a new version: " + on.Value
				}
			}
		}
		w.keys = append(w.keys, out)
	}
}

// value returns the value of a key of a mapping; nil if the key is missing.
func value(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// deeper reports whether the list of rules has a rule for a key below a path. If so, these keys are listed one by one.
func deeper(path string) bool {
	return path == "services" || path == "services.*.deploy" || path == "services.*.deploy.resources"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
