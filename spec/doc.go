// Package spec handles workload specifications: it parses, validates, normalises and seals them
// before they become opaque bytes in the log (spec/DESIGN.md), and translates them for agents
// and views. A new workload type needs changes in this package and a driver only.
//
//	file ─Parse→ request ─Prepare→ command           (apply)
//	record ─Unseal→ specification ─ToAgent→ order    (leader to agent)
//	record ─WorkloadView, NodeView→ answers          (reads)
//
// # The file
//
// YAML or JSON, one document or several. Fields are flat and named as in other tools. The names of
// control.v1 (in snake_case or protobuf's JSON form, nested under spec or not) are accepted too, so
// a request of an API client can be put in a file.
//
//	id: web                      # workload_id: required
//	type: container              # container, compose or vm; default: the section that is given
//	desired: running             # running, stopped or deleted
//	revision: r42                # the caller's own revision name, stored and shown
//	resources:
//	  cpu: 250m                  # or 0.25; cpu_millicores: 250
//	  memory: 128Mi              # memory_mb: 128
//	  disk: 1Gi                  # disk_gb: 1; taken from storage_pool
//	  storage_pool: fast
//	  devices: {nvidia.com/gpu: 1}
//	container:
//	  image: nginx:1.27
//	  command: [nginx, -g, daemon off;]        # or one string, split as a shell does
//	  env: {MODE: demo}                        # or ["MODE=demo"]
//	  ports: ["8080:80", "53:53/udp", "9000", "127.0.0.1:81:80", "8000-8010:8000-8010", {host: 443, container: 8443, name: https}]
//	  volumes: ["/srv/www:/usr/share/nginx/html:ro", {host: /a, container: /b, read_only: true}]
//	  restart: always                          # always, unless-stopped; on-failure: until it ends with 0; no: once
//	  privileged: false
//	  user: "1000:1000"                        # default: the user of the image
//	  cap_add: [NET_ADMIN]                     # and cap_drop: [ALL]
//	  security_opt: [no-new-privileges=false]  # default: no new privileges, the engine's seccomp profile
//	  pids_limit: 100                          # 0: the agents' default; -1: no limit
//	  stop_grace_period: 1m30s                 # time to stop before it is killed; default 30s, at most 10m
//	  stop_signal: SIGQUIT                     # default: that of the image, or SIGTERM
//	  networks: [back]                         # made with persysctl network create
//	  endpoint_mode: dnsrr                     # names lead to instances; default vip, an address of the service
//	  hostname: web                            # and the other fields of a Compose service that one container
//	                                           # can have: docs/reference/workload.md
//	  managed_volumes: [{name: data, driver: local, size: 10Gi, path: /data, retain: Retain}]
//	compose:                     # instead of container
//	  inline: "services: …"      # or file: docker-compose.yml, or git: URL#ref, or git: {repo, ref}
//	  env: {STAGE: demo}
//	vm:                          # instead of container
//	  cpus: 2
//	  memory: 2Gi
//	  image: /var/lib/libvirt/images/debian.qcow2
//	  disks: [{size: 20Gi, device: vda, pool: fast}]
//	  networks: [default, {network: lan, ip: 10.0.0.5}]
//	  cloud_init: {user_data: "#cloud-config…"}  # or the user data itself; or user_data_file
//	  login: {user: ops, ssh_keys: [ssh-ed25519 AAAA… me]}  # and password, or password_file
//	metadata: {app: web}         # labels on the container
//	labels: {zone: a}            # required on the node (contract/semantics.md section 4)
//	constraints: ["region = eu", "disk in ssd,nvme", "gpu exists", {key, operator, values}]
//	tolerations: ["dedicated=web:NoSchedule", {key, value, effect}]
//	spread: [{by: zone, max_skew: 1, when: must}] # of the group's members; or just zone, which is preferred
//	affinity: [{node: "disk = ssd", weight: 80}, {workload: db, by: zone, when: must}]
//	anti_affinity: [{group: web, by: host, when: must}, {tag: tier=batch}] # nodes and workloads to stay away from
//	tags: {tier: front}          # by which the rules of other workloads name this one
//	placement_policy: spread     # or binpack; default is the policy of the cluster
//	group: front                 # members are spread over nodes
//	namespace: shop              # default is "default"
//	count: 3                     # web-0, web-1, web-2 in group web
//	update: {max_parallel: 1, min_healthy_time: 10s, healthy_deadline: 5m, auto_revert: false} # for a
//	                             # count; without it all members change at once; order: start-first, canary: 1
//	reschedule: {attempts: 3, interval: 1h} # moves off nodes that cannot run the workload
//	priority: 0                  # -1000 to 1000, higher first
//	health_check: {http: /ready, port: 80, interval: 10s} # or tcp: true, or command: [...]; timeout,
//	                             # retries, start_period
//	exclusive: false             # never runs on two nodes at once; always true for VMs
//	on_lost_lease: keep          # or stop; exclusive workloads only
//
// Sizes are powers of 1024 in every spelling (Mi, MiB, MB, M), because the
// API's own fields count MiB and GiB; they are rounded up. A size without a unit is an error.
// Aliases, anchors and `<<` work. A document may have 200,000 values; the values behind an alias
// count for each alias.
//
// Parse reports every fault of every document with line and column. For requests over the wire,
// Validate checks the same rules and reports wire names.
//
// # Content
//
// Content decides whether a node has to recreate a workload (spec/DESIGN.md). It covers the fields that
// the node runs:
//
//   - of every workload: type, kind, health check, on_unhealthy, and the metadata that becomes labels
//   - of a container: full image reference, command, environment, ports, volumes, restart policy,
//     privileged, user, capabilities, security options, the other fields of Compose, and the limits of CPU,
//     memory and pids (not the agents' defaults for these)
//   - of a stack: a Compose file or Git source
//   - of a VM: hardware and CPU quota, disks, networks and cloud-init
//
// It does not cover:
//
//   - the workload's id: the members of a count share one content
//   - the desired state: starting and stopping recreates nothing
//   - the caller's revision: legacy v1 CLIs send a constant
//   - the fields that only the planner reads: group, namespace, count, priority, labels, constraints,
//     tolerations, spread, affinity, anti_affinity, tags, placement_policy, reschedule, exclusive,
//     on_lost_lease, disk, storage_pool, and the other resources of a Compose project or VM. They are in
//     the demand.
//
// So a put is a change if and only if content, demand or desired state differ from the record. The
// stored bytes must not be compared, because sealing is random.
//
// The encoding is our own, because protobuf's bytes are not stable across versions. Its header and
// the prefix "c1:" are its version. Secrets are included as keyed hashes. The examples in
// testdata/content.golden must never change.
//
// # Secrets
//
// Environment values, options of a log driver, the text of a Compose file, credentials in a Git URL,
// cloud-init, and a VM under the reserved key are sealed before they go to the log. Each sealed value
// is bound to its workload and field. Views show "***" instead. In an apply, that marker keeps the stored
// value of the field (Keep); Prepare refuses a marker for which there is no stored value.
//
// # Virtual machines in two forms
//
// Legacy v1 clients may put a whole VM, in the agent API's field names, in metadata under
// persys.vm_spec_b64. It replaces vm. It is stored there, sealed, because it can express more than
// vm; vm then holds a copy for views. It never becomes a label of a container.
package spec
