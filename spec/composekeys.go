package spec

import "strings"

// What happens to a key of a Compose file.
const (
	ComposeHonoured   = "honoured"   // as Compose itself does it
	ComposeTranslated = "translated" // done in another way, which the note names
	ComposeIgnored    = "ignored"    // without effect
	ComposeRefused    = "refused"    // the stack does not start while it is there
)

// ComposeKey is one key of a Compose file and what happens to it.
type ComposeKey struct {
	Line    int
	Path    string // services.web.deploy.placement
	Verdict string
	Note    string
}

// composeRule is what happens to a key and everything below it, unless a longer rule says otherwise.
// A '*' stands for one name that the author of the file chose.
type composeRule struct {
	path, verdict, note string
}

// composeRules lists what is not simply honoured, and in composeHonoured what is.
func composeRules() []composeRule {
	const own = "use constraints, tolerations and priority of the workload"
	return []composeRule{
		{"version", ComposeIgnored, "obsolete"},
		{"name", ComposeTranslated, "the project is named after the workload"},
		{"models", ComposeRefused, "agents have no model runner"},
		{"services.*.attach", ComposeIgnored, "for a terminal; logs have every service"},
		{"services.*.build", ComposeRefused, "nodes build no images: name one in image"},
		{"services.*.deploy.endpoint_mode", ComposeIgnored, "for Swarm"},
		{"services.*.deploy.labels", ComposeIgnored, "for Swarm; labels of the service reach containers"},
		{"services.*.deploy.mode", ComposeIgnored, "replicas counts"},
		{"services.*.deploy.placement", ComposeIgnored, own},
		{"services.*.deploy.resources.limits", ComposeHonoured, "and reserved on the node, unless resources of the workload are given"},
		{"services.*.deploy.rollback_config", ComposeIgnored, "a failed update is tried again"},
		{"services.*.deploy.update_config", ComposeIgnored, "what differs is replaced at once"},
		{"services.*.develop", ComposeIgnored, "for a terminal"},
		{"services.*.env_file", ComposeHonoured, "paths are those of the Git repository; .env holds compose.env"},
		{"services.*.labels", ComposeHonoured, "except persys.*"},
		{"services.*.models", ComposeRefused, "agents have no model runner"},
		{"services.*.pre_stop", ComposeIgnored, "a stack is stopped without its file"},
		{"services.*.profiles", ComposeTranslated, "enabled by COMPOSE_PROFILES in compose.env"},
		{"services.*.provider", ComposeRefused, "agents run containers only"},
		{"services.*.pull_policy", ComposeTranslated, "always, missing and never; others count as missing, build as never"},
		{"services.*.pull_refresh_after", ComposeIgnored, "with pull_policy always an update renews the image"},
		{"services.*.restart", ComposeTranslated, "no for exclusive workloads; the agent starts what ended"},
		{"services.*.stop_grace_period", ComposeTranslated, "for updates and deletes; a stop gives the agent's 30 s"},
		{"services.*.volumes", ComposeHonoured, "named ones stay over updates and go with the workload"},
		{"volumes", ComposeHonoured, "stay over updates and go with the workload, except external ones"},
	}
}

// composeHonoured are the other keys of a file, of a service and of its deploy section.
func composeHonoured() []string {
	return []string{
		"include", "services", "networks", "secrets", "configs",
		"services.*.annotations", "services.*.blkio_config", "services.*.cap_add", "services.*.cap_drop", "services.*.cgroup",
		"services.*.cgroup_parent", "services.*.command", "services.*.configs", "services.*.container_name", "services.*.cpu_count",
		"services.*.cpu_percent", "services.*.cpu_period", "services.*.cpu_quota", "services.*.cpu_rt_period",
		"services.*.cpu_rt_runtime", "services.*.cpu_shares", "services.*.cpus", "services.*.cpuset", "services.*.credential_spec",
		"services.*.depends_on", "services.*.deploy", "services.*.deploy.replicas", "services.*.deploy.resources",
		"services.*.deploy.resources.reservations",
		"services.*.deploy.restart_policy", "services.*.device_cgroup_rules", "services.*.devices", "services.*.dns",
		"services.*.dns_opt", "services.*.dns_search", "services.*.domainname", "services.*.entrypoint", "services.*.environment",
		"services.*.expose", "services.*.extends", "services.*.external_links", "services.*.extra_hosts", "services.*.gpus",
		"services.*.group_add", "services.*.healthcheck", "services.*.hostname", "services.*.image", "services.*.init",
		"services.*.ipc", "services.*.isolation", "services.*.label_file", "services.*.links", "services.*.logging",
		"services.*.mac_address", "services.*.mem_limit", "services.*.mem_reservation", "services.*.mem_swappiness",
		"services.*.memswap_limit", "services.*.network_mode", "services.*.networks", "services.*.oom_kill_disable",
		"services.*.oom_score_adj", "services.*.pid", "services.*.pids_limit", "services.*.platform", "services.*.ports",
		"services.*.post_start", "services.*.pre_start", "services.*.privileged", "services.*.read_only", "services.*.runtime",
		"services.*.scale", "services.*.secrets", "services.*.security_opt", "services.*.shm_size", "services.*.stdin_open",
		"services.*.stop_signal", "services.*.storage_opt", "services.*.sysctls", "services.*.tmpfs", "services.*.tty",
		"services.*.ulimits", "services.*.use_api_socket", "services.*.user", "services.*.userns_mode", "services.*.uts",
		"services.*.volumes_from", "services.*.working_dir",
	}
}

// ComposeKeys says of every key of a Compose file what happens to it, in the order of the file. Keys
// of which everything is treated alike stand for what is below them.
func ComposeKeys(text string) ([]ComposeKey, error) {
	if _, err := composeServices(plainCompose(text)); err != nil {
		return nil, err
	}
	c := chunk{text: plainCompose(text)}
	root, err := c.tree()
	if err != nil {
		return nil, err
	}
	rules := map[string]composeRule{}
	for _, path := range composeHonoured() {
		rules[path] = composeRule{path, ComposeHonoured, ""}
	}
	for _, r := range composeRules() {
		rules[r.path] = r
	}
	var out []ComposeKey
	var walk func(n *node, pattern, shown string)
	walk = func(n *node, pattern, shown string) {
		for _, e := range n.own() {
			if len(out) >= maxTokens {
				return
			}
			p, s := below(pattern, e.key), below(shown, e.key)
			if strings.HasPrefix(e.key, "x-") {
				out = append(out, ComposeKey{e.line, s, ComposeIgnored, "an extension"})
				continue
			}
			if pattern == "services" { // the name of a service
				if e.value.kind == mapping {
					walk(e.value, "services.*", s)
				}
				continue
			}
			rule, ok := rules[p]
			if !ok {
				out = append(out, ComposeKey{e.line, s, ComposeRefused, "Compose knows no such key here"})
				continue
			}
			if p == "services.*.build" && n.at("image") != nil {
				rule.verdict, rule.note = ComposeIgnored, "image is used"
			}
			if deeper(p) && e.value.kind == mapping {
				walk(e.value, p, s)
				continue
			}
			out = append(out, ComposeKey{e.line, s, rule.verdict, rule.note})
		}
	}
	walk(root, "", "")
	return out, nil
}

// deeper are the keys below which there are rules of their own.
func deeper(path string) bool {
	return path == "services" || path == "services.*.deploy" || path == "services.*.deploy.resources"
}

func below(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
