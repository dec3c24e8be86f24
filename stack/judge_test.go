package stack

import (
	"strings"
	"testing"
	"time"
)

// faultsOf loads a Compose file in this process and returns its faults. If text has no key services, it holds
// the keys of a service named web, and begins at line 4 of the Compose file.
func faultsOf(t *testing.T, text string) Faults {
	t.Helper()
	if !strings.Contains(text, "services:") {
		text = "services:\n  web:\n    image: a:1\n    " + text + "\n"
	}
	src := source(text)
	src.MaxStopGrace = 10 * time.Minute
	out, err := load(t.Context(), src, Root)
	if err != nil {
		t.Fatal(err)
	}
	return out.Faults
}

// TestValuesThatEnginesRefuse checks that Load refuses each of these values. An engine or the kernel would
// refuse the value when it creates or starts the container, or would silently ignore it.
func TestValuesThatEnginesRefuse(t *testing.T) {
	network := func(address, more string) string {
		return "services:\n  web:\n    image: a\n    networks: {n: {" + address + "}}\n" + more
	}
	for _, c := range []struct {
		text string
		line int
		want string
	}{
		{`container_name: "a b"`, 4, "does not match pattern"},
		{`hostname: "a b"`, 4, "hostname: must be letters, digits"},
		{"hostname: " + strings.Repeat("a", 65), 4, "at most 64 characters"},
		{`domainname: "a b"`, 4, "domainname: must be letters"},
		{`restart: sometimes`, 4, `restart: must be no, always, unless-stopped, on-failure or on-failure:TIMES, got "sometimes"`},
		{`restart: always:3`, 4, "write always"},
		{`restart: on-failure:x`, 4, "a number of restarts behind the colon"},
		{`restart: on-failure:-1`, 4, "a number of restarts behind the colon"},
		{`deploy: {restart_policy: {condition: sometimes}}`, 4, "must be none, on-failure or any"},
		{`healthcheck: {test: [CMD, "true"], interval: 100us}`, 4, "interval: must be at least 1ms"},
		{`healthcheck: {test: "true", timeout: -5s}`, 4, "timeout: must be at least 1ms"},
		{`healthcheck: {test: "true", retries: -1}`, 4, "must be 0 or more"},
		{`healthcheck: {test: [curl, localhost]}`, 4, "must begin with CMD, CMD-SHELL or NONE"},
		{`healthcheck: {test: [CMD]}`, 4, "must have a command behind CMD"},
		{`healthcheck: {test: [NONE, x]}`, 4, "must have nothing behind NONE"},
		{`healthcheck: {interval: 5}`, 4, "write a duration with its unit"},
		{`stop_grace_period: 30`, 4, "write a duration with its unit"},
		{"depends_on: {db: {condition: service_healthy}}\n  db: {image: b, healthcheck: {disable: true}}", 4, "the health check of db is switched off"},
		{"depends_on: [db]\n  db: {image: b, profiles: [x]}", 4, "behind the profile x: enable it with COMPOSE_PROFILES=x"},
		{`ports: ["80:80/icmp"]`, 4, "want tcp, udp or sctp"},
		{`ports: [{target: 80, published: "80", protocol: icmp}]`, 4, "must be one of tcp, udp, sctp"},
		{`ports: [{target: 80, mode: weird}]`, 4, "must have the mode ingress or host"},
		{`ports: ["300.1.1.1:80:80"]`, 4, "invalid IP address"},
		{`ports: ["8000-8003:80-82"]`, 4, "give ranges of the same length"},
		{`expose: ["70000"]`, 4, "must be 1 to 65535"},
		{`expose: ["90-80"]`, 4, "backwards: write 80-90"},
		{`expose: [http]`, 4, "must be a port of the container"},
		{`volumes: ["/srv:data"]`, 4, `volumes.0: must be an absolute path, got "data"`},
		{`volumes: ["/srv:/"]`, 4, "must not be the root of the container"},
		{"volumes:\n      - /srv:/d\n      - /tmp:/d/", 6, "says something else about /d than line 5"},
		{`volumes: ["/srv:/d:rx"]`, 4, `has no option "rx"`},
		{`volumes: [{type: bind, source: /a, target: /b, bind: {propagation: weird}}]`, 4, "must be one of private, rprivate"},
		{`volumes: [{type: tmpfs, source: a, target: /b}]`, 4, "of the type tmpfs has no source"},
		{`volumes: [{type: npipe, source: /a, target: /b}]`, 4, "of the type npipe is not for nodes"},
		{`tmpfs: run`, 4, "must be an absolute path"},
		{`tmpfs: ["/run:sise=5m"]`, 4, `has no option "sise=5m"`},
		{`tmpfs: ["/run:size=lots"]`, 4, `has an invalid value in "size=lots"`},
		{`working_dir: app`, 4, "must be an absolute path"},
		{`user: "4294967296"`, 4, "must have a UID or GID of 0 to 2147483647"},
		{`user: "0:0:0"`, 4, "with :GROUP or :GID"},
		{`group_add: ["a b"]`, 4, "without blanks"},
		{`mac_address: "02:42"`, 4, "must be like 52:54:00:12:34:56"},
		{`mac_address: "01:00:5e:00:00:01"`, 4, "the second digit must be even"},
		{`ulimits: {nofile: {soft: 200, hard: 100}}`, 4, "soft must be at most hard (100)"},
		{`ulimits: {nofile: {soft: -1, hard: 100}}`, 4, "soft must be at most hard (100)"},
		{`ulimits: {nofiles: 100}`, 4, "is not the name of a limit; the names are as, core"},
		{`shm_size: -1`, 4, "must not be negative"},
		{`sysctls: {vm.max_map_count: 1}`, 4, "set it on the node"},
		{"network_mode: host\n    sysctls: {net.core.somaxconn: 1}", 5, "must not be set with network_mode: host"},
		{"ipc: host\n    sysctls: {kernel.shmmax: 1}", 5, "must not be set with ipc: host"},
		{`devices: ["dev/null"]`, 4, "must begin with an absolute path on the node"},
		{`devices: ["/dev/null:/dev/x:rwz"]`, 4, "must have permissions of r, w and m"},
		{`device_cgroup_rules: ["x 1:1 rwm"]`, 4, `must be like "c 1:3 rwm"`},
		{`labels: ["=x"]`, 4, "keys must not be empty"},
		{`labels: ["a=b", "a=c"]`, 4, "says something else about a"},
		{`environment: ["A=b", "A=c"]`, 4, "says something else about A"},
		{`environment: ["=x"]`, 4, "names must not be empty"},
		{`cap_add: [NET_ADMN]`, 4, "did you mean NET_ADMIN?"},
		{`cap_drop: [EVERYTHING]`, 4, "must be the name of a capability"},
		{`cpuset: 0-`, 4, "must be processors and ranges of them"},
		{`cpuset: 3-1`, 4, "must be processors and ranges of them"},
		{`cpus: -1`, 4, "at least 0.01"},
		{`cpu_shares: -1`, 4, "must not be negative"},
		{`cpu_period: 100`, 4, "must be 1000 to 1000000"},
		{`cpu_quota: 10`, 4, "must be at least 1000"},
		{"cpu_period: 100000\n    cpus: 1", 5, "give one of them"},
		{"cpu_quota: 50000\n    deploy: {resources: {limits: {cpus: '1'}}}", 5, "give one of them"},
		{`memswap_limit: 100m`, 4, "needs mem_limit"},
		{"mem_limit: 100m\n    memswap_limit: 50m", 5, "must be at least mem_limit"},
		{`mem_swappiness: 200`, 4, "must be -1 to 100"},
		{`oom_score_adj: 2000`, 4, "-1000 to 1000"},
		{`blkio_config: {weight: 5}`, 4, "must be 10 to 1000"},
		{`pids_limit: 5000000`, 4, "must be -1 to 4194304"},
		{`deploy: {replicas: 100000}`, 4, "must be 0 to 1000"},
		{`dns: example.org`, 4, "must be an IP address"},
		{`dns_search: "a b"`, 4, "must not contain blanks"},
		{`extra_hosts: ["db"]`, 4, "write name=10.0.0.5"},
		{`extra_hosts: ["db:1.2.3"]`, 4, "must be like name=10.0.0.5"},
		{`networks: [backend]`, 4, "declare it under the top-level key networks"},
		{`networks: {default: {aliases: ["a b"]}}`, 4, "must not contain blanks"},
		{network("ipv4_address: 1.2.3", "networks: {n: {}}"), 4, "must be an IPv4 address"},
		{network("ipv4_address: 10.1.1.1", "networks: {n: {}}"), 4, "needs a subnet of the network"},
		{network("ipv4_address: 10.2.1.1", "networks: {n: {ipam: {config: [{subnet: 10.1.0.0/16}]}}}"), 4, "is in no subnet of the network n"},
		{network("ipv6_address: 10.1.1.1", "networks: {n: {ipam: {config: [{subnet: 10.1.0.0/16}]}}}"), 4, "must be an IPv6 address"},
		{network("ipv4_address: 10.1.1.1", "    scale: 2\nnetworks: {n: {ipam: {config: [{subnet: 10.1.0.0/16}]}}}"), 4, "is for one container, and the service has 2 replicas"},
		{network("ipv4_address: 10.1.1.1", "  api:\n    image: a\n    networks: {n: {ipv4_address: 10.1.1.1}}\nnetworks: {n: {ipam: {config: [{subnet: 10.1.0.0/16}]}}}"), 4, "is also the address of service api"},
		{network("", "networks:\n  n: {ipam: {config: [{subnet: 10.1.0.0}]}}"), 6, "must be a network such as"},
		{network("", "networks:\n  n: {ipam: {config: [{subnet: 10.1.0.5/24}]}}"), 6, "write the network, 10.1.0.0/24"},
		{network("", "networks:\n  n: {ipam: {config: [{subnet: 10.1.0.0/24, gateway: 10.2.0.1}]}}"), 6, "is not in the subnet 10.1.0.0/24"},
		{network("", "networks:\n  n: {ipam: {config: [{subnet: 10.1.0.0/24, ip_range: 10.2.0.0/25}]}}"), 6, "is not in the subnet 10.1.0.0/24"},
		{network("}, m: {", "networks:\n  m: {ipam: {config: [{subnet: 10.1.0.0/16}]}}\n  n: {ipam: {config: [{subnet: 10.1.0.0/24}]}}"), 7, "overlaps with 10.1.0.0/16 of network m"},
		{network("", "networks:\n  n: {name: a b}"), 6, "must not contain blanks"},
		{network("", "networks:\n  n: {driver: overlay}"), 6, "needs Swarm"},
		{network("", "networks:\n  n: {driver: host}"), 6, "write network_mode"},
		{`deploy: {resources: {limits: {cpus: "1"}, reservations: {cpus: "2"}}}`, 4, "is more than the limit"},
		{"network_mode: service:db\n    ports: [\"80:80\"]\n  db: {image: b}", 5, "set it on that service"},
		{"network_mode: service:db\n    hostname: x\n  db: {image: b}", 5, "set it on that service"},
		{`network_mode: service:db`, 4, "name a service of this file"},
		{`pid: hots`, 4, "must be host, service:NAME"},
		{`ipc: weird`, 4, "must be none, private"},
		{`uts: weird`, 4, "must be one of host"},
		{`userns_mode: weird`, 4, "must be one of host"},
		{`isolation: hyperv`, 4, "is for Windows; nodes run Linux"},
		{`credential_spec: {file: x}`, 4, "is for Windows"},
		{`platform: linus/amd64`, 4, "must be the platform of a Linux image"},
		{`platform: windows/amd64`, 4, "must be the platform of a Linux image"},
		{`security_opt: [weird]`, 4, "must be an option of the engine"},
		{`security_opt: ["no-new-privileges:maybe"]`, 4, "must be no-new-privileges=true"},
		{`logging: {driver: json-file, options: {max-sise: 1m}}`, 4, "is not an option of the driver json-file"},
		{`logging: {driver: json-file, options: {max-size: lots}}`, 4, "must be a size"},
		{`logging: {driver: local, options: {max-file: "0"}}`, 4, "at least 1"},
		{`logging: {driver: json-file, options: {compress: "true"}}`, 4, "needs max-size"},
		{`init: maybe`, 4, "write true or false"},
		{`secrets: [s]`, 4, "declare it under the top-level key secrets"},
		{"services:\n  web:\n    image: a\n    secrets: [{source: s, uid: root}]\nsecrets: {s: {external: true}}", 4, "must be a number from 0 to 2147483647"},
		{"services:\n  web:\n    image: a\n    secrets: [{source: s, mode: 04444}]\nsecrets: {s: {external: true}}", 4, "must be 0 to 0777"},
		{"services:\n  web:\n    image: a\n    configs: [{source: s, target: etc/x}]\nconfigs: {s: {external: true}}", 4, "must be an absolute path"},
		{"services:\n  web:\n    image: a\n    volumes: ['/srv:/x']\n    configs: [{source: s, target: /x}]\nconfigs: {s: {external: true}}", 5, "is already the path of a volume"},
		{"services:\n  web:\n    image: a\n    secrets: [{source: s, target: /x}]\n    configs: [{source: s, target: /x}]\nconfigs: {s: {external: true}}\nsecrets: {s: {external: true}}", 5, "is already the path of secret s"},
		{"services:\n  web: {image: a, secrets: [s]}\nsecrets:\n  s: {external: true, x-on-change: reload}", 4, "must be restart, nothing or a signal such as"},
		{"services:\n  web: {image: a, secrets: [s, t]}\nsecrets:\n  s: {external: true, x-on-change: signal HUP}\n  t: {external: true, name: s}", 5, "names the same secret or config of the cluster as s but has another x-on-change"},
		{"services:\n  web: {image: a, secrets: [s]}\nsecrets:\n  s: {environment: NOPE}", 4, "needs the variable NOPE"},
		{"services:\n  web:\n    image: a\n    configs:\n      - {source: s, target: /x}\n      - {source: r, target: /x}\nconfigs: {s: {content: x}, r: {content: y}}", 6, "says something else about /x than line 5"},
		{"services:\n  web: {image: a, volumes: [\"data:/d\"]}\nvolumes:\n  data: {name: a b}", 4, "must be a letter or digit"},
		{"services:\n  \"we b\": {image: a}", 2, "Compose knows no such key here"},
		{`imagine: 1`, 4, "additional properties 'imagine' not allowed"},
		{`command: "sh -c 'echo"`, 4, "a quotation mark is not closed"},
		{"depends_on: [api]\n  api: {image: b, depends_on: [web]}", 5, "remove one of these dependencies"},
	} {
		t.Run(strings.ReplaceAll(c.text, "\n", " "), func(t *testing.T) {
			faults := faultsOf(t, c.text)
			if len(faults) == 0 {
				t.Fatal("Load must refuse the stack, which has a value that engines refuse, but accepted it")
			}
			if f := faults[0]; f.Line != c.line || !strings.Contains(f.String(), c.want) {
				t.Errorf("the first fault that Load returned is %s\nwant a fault in line %d with %s", f.String(), c.line, c.want)
			}
		})
	}
}

// TestValuesThatEnginesAccept checks that Load accepts each of these values, because engines accept them.
func TestValuesThatEnginesAccept(t *testing.T) {
	for _, text := range []string{
		"hostname: db_1.example.org", "hostname: " + strings.Repeat("a", 64), "domainname: example.org",
		"restart: no", "restart: \"no\"", "restart: on-failure:3", "restart: unless-stopped", "deploy: {restart_policy: {condition: any, delay: 5s}}",
		"healthcheck: {test: [CMD, \"true\"], interval: 1ms, timeout: 0s, retries: 3}", "healthcheck: {disable: true}", "healthcheck: {test: [NONE]}",
		"healthcheck: {test: [\"CMD-SHELL\", \"a || b\"], start_period: 1m, start_interval: 1s}", "healthcheck: {interval: 5s}", "healthcheck: {test: \"true\"}",
		"depends_on: {db: {condition: service_healthy}}\n  db: {image: b}",
		"ports: [\"80:80\", \"80:80\"]", "ports: [\"53:53/udp\", \"53:53/tcp\", \"9:9/sctp\"]", "ports: [\"[::1]:80:80\"]", "ports: [{target: 80, published: \"8080\", host_ip: 127.0.0.1, mode: host}]",
		"expose: [\"80\", \"90-95\", \"53/udp\", 8080]",
		"volumes: [\"/srv:/d:ro,z\", \"/tmp:/e:rshared\", \"/x\", \"/var/run/docker.sock:/var/run/docker.sock:cached\"]", "volumes: [\"/srv:/d\", \"/srv:/d\"]",
		"volumes: [{type: tmpfs, target: /d, tmpfs: {size: 64m, mode: 1777}}]", "volumes: [{type: bind, source: /a, target: /b, bind: {propagation: rslave}}]",
		"tmpfs: /run", "tmpfs: [\"/run:size=64m,mode=1777,uid=1000,noexec\", \"/tmp:rw,size=10%\"]",
		"working_dir: /app", "user: \"1000:1000\"", "user: \"0\"", "user: app:staff", "user: \":0\"", "user: \"2147483647\"", "group_add: [audio, \"44\"]",
		"mac_address: \"02:42:ac:11:00:03\"", "ulimits: {nofile: {soft: 100, hard: 200}, nproc: 65535, memlock: -1, core: 0}", "ulimits: {memlock: {soft: -1, hard: -1}}",
		"shm_size: 64m", "sysctls: {net.core.somaxconn: 1024, kernel.shmmax: 1}", "sysctls: [net.ipv4.ip_forward=1]",
		"devices: [\"/dev/null\", \"/dev/fuse:/dev/fuse:rw\", \"vendor.com/gpu=all\"]", "device_cgroup_rules: [\"c 1:3 mr\", \"a *:* rwm\"]",
		"labels: {com.example.a: \"b c\"}", "labels: [\"a\", \"b=\"]", "environment: [\"A=b\", B, \"C=\", \"A=b\"]", "environment: {A B: x, 1A: x}",
		"cap_add: [net_admin, CAP_SYS_TIME, ALL]", "cap_drop: [ALL]", "cpuset: \"0-3,5\"", "cpuset: \"0\"", "cpus: 0.5", "cpu_shares: 73", "cpu_period: 50000\n    cpu_quota: 25000",
		"mem_limit: 100m\n    memswap_limit: -1", "mem_limit: 1 GB", "deploy: {resources: {limits: {memory: 64m}}}\n    memswap_limit: 128m", "mem_swappiness: 0", "oom_score_adj: -500",
		"blkio_config: {weight: 300}", "pids_limit: -1", "dns: [1.1.1.1, \"2606:4700::1111\"]", "dns_search: example.org", "dns_opt: [\"ndots:9\", use-vc]",
		"extra_hosts: [\"a:10.0.0.1\", \"b=host-gateway\", \"c:::1\", \"d=[::1]\"]", "extra_hosts: {a: 10.0.0.1}",
		"network_mode: host", "network_mode: none", "network_mode: bridge", "network_mode: other_net", "network_mode: service:db\n    depends_on: [db]\n  db: {image: b, ports: [\"80:80\"]}",
		"pid: host\n    ipc: shareable\n    uts: host\n    userns_mode: host", "pid: service:db\n  db: {image: b}", "isolation: default",
		"platform: linux/arm64/v8", "platform: linux", "security_opt: [\"no-new-privileges:true\", \"label:disable\", apparmor=unconfined]",
		"logging: {driver: json-file, options: {max-size: 10m, max-file: \"3\", compress: \"true\", tag: x}}", "logging: {driver: fluentd, options: {any: thing}}",
		"logging: {driver: local, options: {max-size: 10m, mode: non-blocking, max-buffer-size: 4m}}", "deploy: {replicas: 3, mode: replicated}",
		"services:\n  web:\n    image: a\n    networks: {n: {ipv4_address: 10.1.0.9, aliases: [db.local]}}\nnetworks: {n: {ipam: {config: [{subnet: 10.1.0.0/24, gateway: 10.1.0.1, ip_range: 10.1.0.128/25, aux_addresses: {a: 10.1.0.2}}]}}}",
		"services:\n  web:\n    image: a\n    networks: {n: {ipv4_address: 10.1.0.9}}\nnetworks: {n: {external: true}}",
		"services:\n  web: {image: a, networks: [n, m]}\nnetworks: {n: {driver: macvlan, driver_opts: {parent: eth0}}, m: {external: true, name: host}}",
		"services:\n  web: {image: a, volumes: [\"data:/d\"]}\nvolumes: {data: {name: shop_data}}",
		"services:\n  web: {image: a, configs: [{source: s, target: etc/x, mode: 0440}], secrets: [p]}\nconfigs: {s: {content: x}}\nsecrets: {p: {environment: COMPOSE_PROJECT_NAME}}",
		"services:\n  web: {image: a}\nsecrets: {unused: {external: true}}",
		"services:\n  web: {image: a, secrets: [s, {source: t, target: x, uid: \"7\", mode: 0400}], configs: [s]}\nsecrets: {s: {external: true}, t: {external: true, name: other}}\nconfigs: {s: {external: true}}",
	} {
		t.Run(strings.ReplaceAll(text, "\n", " "), func(t *testing.T) {
			if faults := faultsOf(t, text); len(faults) > 0 {
				t.Error(faults)
			}
		})
	}
}
