package spec

import (
	"maps"
	"strings"

	"github.com/persys/compute/fsm/bounds"
)

// notes returns the description of every field, and the rules of Validate that do not follow from the
// decoder. SchemaFields reports fields without a description.
func notes() map[string]note {
	out := map[string]note{
		"workload_id":   {what: "The workload's name: a letter or digit, then up to 127 letters, digits, '_', '.' or '-'.", example: "web"},
		"desired_state": {what: "Desired state; default running.", words: desiredWords, example: "running"},
		"revision_id":   {what: "Your own name for this revision of the workload. It is stored and shown, but never compared."},
		"request_id":    {what: "Request id, a UUIDv7. An apply that is sent again with the same id is not applied twice."},
		"spec":          {what: "The fields of the specification, nested below spec as in the API."},

		"spec.type":                         {what: "Type of the workload. The default follows from which of container, compose and vm is set.", words: types},
		"spec.container":                    {what: "A container."},
		"spec.compose":                      {what: "A Compose stack."},
		"spec.vm":                           {what: "A virtual machine; it is always exclusive."},
		"spec.resources":                    {what: "Resources that the workload reserves on its node. For a container they are also its limits."},
		"spec.metadata":                     {what: "Labels on the container."},
		"spec.labels":                       {what: "Labels that the node must carry."},
		"spec.group":                        {what: "Group of the workload. Workloads of one group are spread over the nodes."},
		"spec.namespace":                    {what: "Namespace of the workload, which cannot be changed later. The default is its present namespace, or \"default\" for a new workload.", example: "shop"},
		"spec.count":                        {what: "Number of copies of the workload: NAME-0, NAME-1, … in group NAME. With 0 no copy runs, and NAME-0 is kept, stopped. Without count there is one workload with the id NAME.", low: 0, high: MaxCount},
		"spec.autoscale":                    {what: "The scheduler chooses the number of copies by their CPU use. count is then the number of a new group, by default min, and later applies do not change the number. Only for containers that are services, with resources.cpu.", example: map[string]any{"min": 2, "max": 10, "cpu": 70}},
		"spec.autoscale.min":                {what: "Smallest number of copies.", low: 1, high: MaxCount},
		"spec.autoscale.max":                {what: "Largest number of copies.", low: 1, high: MaxCount},
		"spec.autoscale.cpu":                {what: "Wanted CPU use of the copies in percent of resources.cpu, which is also the limit of their use.", low: 1, high: bounds.MaxScaleCPU},
		"spec.update":                       {what: "How the copies that count makes are updated to a new specification. Without update, all copies are updated at once."},
		"spec.kind":                         {what: "A service runs until it is stopped. A job runs to completion and keeps its result. A cron starts a job at each time of a schedule. A system workload has one member on every node that matches. Default service.", words: kinds},
		"spec.job":                          {what: "Settings of a job, or of the runs of a cron; only with kind: job or cron."},
		"spec.job.parameterized":            {what: "An apply does not run the job. Each persysctl job dispatch starts one run, with its own parameters."},
		"spec.job.parameterized.parameters": {what: "Parameters that a run takes. Their values are in the variables PERSYS_PARAM_<NAME> of the run."},
		"spec.job.parameterized.parameters[].name":     {what: "Name of the parameter: letters, digits and underscores.", example: "file"},
		"spec.job.parameterized.parameters[].required": {what: "Each run must set the parameter."},
		"spec.job.parameterized.parameters[].default":  {what: "Value of runs that do not set the parameter."},
		"spec.job.parameterized.input":                 {what: "Whether a run takes an input, which is in its variable PERSYS_INPUT; default optional.", words: inputs},
		"spec.cron":                                    {what: "Schedule of a cron; only with kind: cron."},
		"spec.cron.schedule":                           {what: "Five fields (minute, hour, day of month, month, day of week), or @hourly, @daily, @weekly, @monthly or @yearly.", example: "30 2 * * *"},
		"spec.cron.time_zone":                          {what: "Name in the time zone database; default UTC.", example: "Europe/Berlin"},
		"spec.cron.concurrency":                        {what: "What happens if a run has not ended at the next time: allow starts another one (default), forbid skips the time, replace stops the run and starts another one.", words: concurrencies},
		"spec.cron.starting_deadline_seconds":          {what: "Time after a missed time of the schedule, in whole seconds, within which its run still starts. Without it there is no limit.", example: "10m"},
		"spec.cron.keep_succeeded":                     {what: "Successful runs that are kept; default 3.", low: 0, high: bounds.MaxKeptRuns},
		"spec.cron.keep_failed":                        {what: "Failed runs that are kept; default 1.", low: 0, high: bounds.MaxKeptRuns},
		"spec.cron.suspend":                            {what: "No run starts by the schedule."},
		"spec.job.completions":                         {what: "Number of runs that must succeed. Each is a workload: NAME-0, NAME-1, … in group NAME. Without completions there is one workload with the id NAME.", low: 1, high: MaxCount},
		"spec.job.parallelism":                         {what: "How many of the completions may run at the same time; default all.", low: 0, high: MaxCount},
		"spec.job.retries":                             {what: "How often a failed run is repeated; default 3.", low: 0, high: maxRetries},
		"spec.job.every_node":                          {what: "The job runs once on every node that matches, also on nodes that join later. Not with completions."},
		"spec.job.deadline_seconds":                    {what: "Time from the first placement on a node, in whole seconds, after which an unfinished job is stopped and has failed.", example: "10m"},
		"spec.job.success_codes":                       {what: "Exit codes that mean success; default 0.", example: []any{0, 3}},
		"spec.job.ttl_after_finished_seconds":          {what: "Time after the end of the job, in whole seconds, at which its record is deleted. Without it the record stays.", example: "24h"},
		"spec.constraints":                             {what: "Conditions on the labels of nodes on which the workload may run: \"region = eu\", \"disk in ssd,nvme\", \"gpu exists\".", example: []any{"region = eu"}},
		"spec.tolerations":                             {what: "Taints that the workload tolerates: \"dedicated=web:NoSchedule\"."},
		"spec.spread":                                  {what: "Distributes the members of the group evenly over the values of a node label: \"zone\", or {by, max_skew, when}.", example: []any{map[string]any{"by": "zone", "when": "must"}}},
		"spec.affinity":                                {what: "Nodes and workloads that the workload should be near to. Each rule has one of node, workload, group and tag.", example: []any{map[string]any{"node": "disk = ssd", "weight": 80}}},
		"spec.anti_affinity":                           {what: "Nodes and workloads that the workload should stay away from. Each rule has one of node, workload, group and tag.", example: []any{map[string]any{"group": "db", "by": "host", "when": "must"}}},
		"spec.tags":                                    {what: "Keys and values by which the rules of other workloads can name this one.", example: map[string]any{"tier": "batch"}},
		"spec.placement_policy":                        {what: "Placement policy of this workload: spread prefers empty nodes, binpack full ones; default is the policy of the cluster.", words: placementPolicies},
		"spec.on_unhealthy":                            {what: "What happens when the workload becomes unhealthy: keep leaves it running, restart restarts it with a growing delay. Default: restart for a system workload, keep for every other workload. Not for jobs.", words: onUnhealthyWords},
		"spec.reschedule":                              {what: "How often the workload is moved because its node cannot run it: the port is taken, the disk is full, the image or a device is missing. Not for virtual machines, exclusive and system workloads.", example: map[string]any{"attempts": 3, "interval": "1h"}},
		"spec.reschedule.attempts":                     {what: "Largest number of moves within the interval; default 3; 0 if the workload can write to folders of its host and has no reschedule. 0: the workload is never moved.", low: 0, high: bounds.MaxMoves},
		"spec.reschedule.interval_seconds":             {what: "Time, in whole seconds, in which moves are counted and the nodes that the workload left are avoided, 1 min to 30 days; default 1 h.", example: "1h"},
		"spec.exclusive":                               {what: "The workload never runs on two machines at once, even if a machine is lost."},
		"spec.on_lost_lease":                           {what: "What happens to an exclusive workload on a node that is cut off from the schedulers; stop needs a node with self_fencing.", words: []string{"keep", "stop"}},
		"spec.priority":                                {what: "Workloads of higher priority are placed first and may evict workloads of lower priority. In other namespaces, the priority counts only up to the maximum priority of the workload's own namespace.", low: -MaxPriority, high: MaxPriority},

		"spec.health_check":                      {what: "Health check: exactly one of http, tcp and command."},
		"spec.health_check.http":                 {what: "Path of an HTTP GET request to port. A response with a status from 200 to 399 means healthy.", example: "/ready"},
		"spec.health_check.tcp":                  {what: "The workload is healthy if port accepts a TCP connection."},
		"spec.health_check.command":              {what: "Command that is run inside the workload; exit code 0 means healthy. Not possible for virtual machines."},
		"spec.health_check.port":                 {what: "Port inside the workload that http and tcp check.", low: 1, high: 65535},
		"spec.health_check.service":              {what: "Service of the Compose stack in which command is run."},
		"spec.health_check.interval_seconds":     {what: "Time between two health checks in whole seconds; default 10 s.", example: "10s"},
		"spec.health_check.timeout_seconds":      {what: "Time limit of one health check in whole seconds; default 3 s.", example: "3s"},
		"spec.health_check.retries":              {what: "Number of failed health checks in a row that make the workload unhealthy; default 3.", low: 0, high: 100},
		"spec.health_check.start_period_seconds": {what: "Time after the start, in whole seconds, in which failed health checks do not count.", example: "30s"},
		"spec.update.max_parallel":               {what: "Number of copies that may be unavailable during an update; default 1.", low: 0, high: MaxCount},
		"spec.update.min_healthy_time_seconds":   {what: "Time that an updated copy must be healthy before the next one is updated; default 10 s.", example: "10s"},
		"spec.update.healthy_deadline_seconds":   {what: "Time limit for an updated copy to become healthy; default 5 min. If a copy misses it, the update pauses.", example: "5m"},
		"spec.update.order":                      {what: "Order in which copies are replaced: start-first runs extra copies, as many as max_parallel, before it stops a copy of the former version, and deletes them at the end; stop-first runs none. Default stop-first. start-first is not for exclusive workloads, virtual machines and workloads with local data.", words: updateOrders},
		"spec.update.canary":                     {what: "Number of copies that are updated first. The update then waits for persysctl rollout promote or abort. With start-first they are extra copies, at most count; with stop-first less than count. Default 0: the update does not wait.", low: 0, high: MaxCount},
		"spec.update.auto_revert":                {what: "If an update fails, roll back to the previous specification instead of pausing."},
		"spec.resources.cpu_millicores":          {what: "CPU cores, such as 0.25 or 250m; as cpu_millicores a whole number of millicores.", example: "250m"},
		"spec.resources.memory_mb":               {what: "Memory, such as 128Mi or 1Gi; as memory_mb a whole number of MiB.", example: "128Mi"},
		"spec.resources.disk_gb":                 {what: "Disk space in storage_pool, such as 10Gi; as disk_gb a whole number of GiB.", example: "10Gi"},
		"spec.resources.storage_pool":            {what: "Storage pool of the node from which disk is taken."},
		"spec.resources.devices":                 {what: "Numbers of devices by name, which the nodes offer (PERSYS_NODE_DEVICES, or CDI devices of the engine). A container gets as many free CDI devices of the kind VENDOR/CLASS; other names are only counted.", example: map[string]any{"nvidia.com/gpu": 1}},

		"spec.container.image":                  {what: "Image reference.", example: "nginx:1.27"},
		"spec.container.command":                {what: "Command of the container: a list of words, or one string that is split as a shell does."},
		"spec.container.env":                    {what: "Environment variables: a mapping, or a list of KEY=VALUE. Values are sealed before they are stored."},
		"spec.container.ports":                  {what: "Published ports: \"8080:80\", \"53:53/udp\", \"127.0.0.1:8080:80\", \"[::1]:8080:80\", \"8000-8010:8000-8010\", \"80\" (the engine chooses the host port), or mappings.", example: []any{"8080:80"}},
		"spec.container.ports[].host_port":      {what: "Port on the node; 0 lets the engine choose.", low: 0, high: 65535},
		"spec.container.ports[].container_port": {what: "Port in the container.", low: 1, high: 65535},
		"spec.container.ports[].name":           {what: "Name of the port, for DNS."},
		"spec.container.ports[].address":        {what: "Address of the node at which the port is published; default all.", example: "127.0.0.1"},
		"spec.container.ports[].mode":           {what: "host (default): the port answers on the node of the instance. ingress: it answers on every node and leads to the ready instances of the service on all nodes. Needs host_port.", words: portModes},
		"spec.container.ports[].protocol":       {what: "tcp or udp; default tcp.", words: protocols},
		"spec.container.volumes":                {what: "Folders and files of the node that are mounted: \"/host/path:/container/path\", with \":ro\" for read-only, or mappings."},

		"spec.container.volumes[].host_path":       {what: "Folder or file on the node."},
		"spec.container.volumes[].container_path":  {what: "Path in the container."},
		"spec.container.volumes[].read_only":       {what: "Mounted read-only."},
		"spec.container.restart_policy":            {what: "When a container that has ended is started again: always, unless-stopped, on-failure (until it ends with exit code 0), on-failure:3 (at most 3 times), or no (never). Without a policy the agent starts the container again a few times.", words: restartPolicies, pattern: `^\s*on-failure:[0-9]+\s*$`},
		"spec.container.privileged":                {what: "The container runs with all privileges on the node; default false."},
		"spec.container.user":                      {what: "User that runs the container, or UID[:GID]; default is the user of the image.", example: "1000:1000"},
		"spec.container.cap_add":                   {what: "Linux capabilities that the container gets in addition to those that the engine gives.", example: []any{"NET_ADMIN"}},
		"spec.container.cap_drop":                  {what: "Linux capabilities that the container does not get; ALL means all of them.", example: []any{"ALL"}},
		"spec.container.security_opt":              {what: "Security options of the engine. Without them the container runs with no-new-privileges and the engine's seccomp profile.", example: []any{"no-new-privileges=false"}},
		"spec.container.pids_limit":                {what: "Maximum number of processes and threads in the container; 0 is the agents' default, -1 no limit.", low: -1, high: maxPids},
		"spec.container.stop_grace_period_seconds": {what: "Time in whole seconds that the container has to stop after the stop signal, before it is killed; default 30 s, at most 10 min.", example: "1m30s"},
		"spec.container.stop_signal":               {what: "Signal that tells the container to stop; default is the one that the image names, or SIGTERM.", example: "SIGQUIT"},
		"spec.container.managed_volumes":           {what: "Named volumes that the node provides."},

		"spec.compose.inline_yaml":     {what: "The Compose file: its text (inline), or its path (file), which persysctl reads."},
		"spec.compose.git_repo":        {what: "Git repository with the Compose file: URL#branch, or {repo, ref, credentials}."},
		"spec.compose.git.repo":        {what: "URL of the Git repository."},
		"spec.compose.git_ref":         {what: "Branch, tag or commit of the Git repository."},
		"spec.compose.git_credentials": {what: "Name of the Git credentials in the configuration of the node."},
		"spec.compose.source_type":     {what: "inline or git. The default follows from which of the two is set."},
		"spec.compose.managed_volumes": {what: "Named volumes of the Compose file that the node provides."},
		"spec.compose.env":             {what: "Values of the variables in the Compose file, and COMPOSE_PROFILES."},

		"spec.vm.vcpus":                     {what: "Number of virtual processors."},
		"spec.vm.memory_mb":                 {what: "Memory, such as 2Gi; as memory_mb a whole number of MiB.", example: "2Gi"},
		"spec.vm.os_image":                  {what: "Disk image on the node from which the first disk is created."},
		"spec.vm.disks":                     {what: "Disks; the first one holds the operating system."},
		"spec.vm.disks[].pool_name":         {what: "Storage pool of the node in which the disk is created."},
		"spec.vm.disks[].size_gb":           {what: "Size of the disk, such as 20Gi; as size_gb a whole number of GiB.", example: "20Gi"},
		"spec.vm.disks[].mount_point":       {what: "Device name of the disk in the guest.", example: "vda"},
		"spec.vm.networks":                  {what: "Networks that the machine is connected to: names of networks of the node, or mappings."},
		"spec.vm.networks[].bridge":         {what: "Name of the network on the node."},
		"spec.vm.networks[].dhcp":           {what: "The machine gets its address by DHCP."},
		"spec.vm.networks[].static_ip":      {what: "Fixed IP address of the machine in this network."},
		"spec.vm.networks[].mac_address":    {what: "Fixed Ethernet address of the machine in this network, which no other workload has."},
		"spec.vm.cloud_init":                {what: "Data for cloud-init: the user data as one string, or a mapping with its parts."},
		"spec.vm.cloud_init.user_data":      {what: "User data (#cloud-config), or a file with it (user_data_file)."},
		"spec.vm.cloud_init.meta_data":      {what: "Meta data, or the file that holds it (meta_data_file)."},
		"spec.vm.cloud_init.network_config": {what: "Network configuration, or the file that holds it (network_config_file)."},
		"spec.vm.cloud_init.vendor_data":    {what: "Vendor data, or the file that holds it (vendor_data_file)."},
		"spec.vm.login":                     {what: "Account that may log in. It is added to the user data of cloud-init."},
		"spec.vm.login.user":                {what: "Name of the account."},
		"spec.vm.login.password":            {what: "Password of the account, stored sealed; prefer keys."},
		"spec.vm.login.ssh_authorized_keys": {what: "SSH public keys of the account."},
		"spec.vm.managed_volumes":           {what: "Named volumes that the node provides."},

		"spec.spread[].by":            {what: "Key of a node label, or host.", example: "zone"},
		"spec.spread[].max_skew":      {what: "Largest difference between the numbers of members at two values; default 1.", low: 1, high: bounds.MaxSkew},
		"spec.spread[].when":          {what: "must or prefer; default prefer.", words: whens},
		"spec.constraints[].key":      {what: "Key of a node label."},
		"spec.constraints[].operator": {what: "How the node's label is compared with values; default =.", words: operators},
		"spec.constraints[].values":   {what: "Values with which the node's label is compared."},
		"spec.tolerations[].key":      {what: "Key of the tolerated taint; * matches every key, so {key: \"*\"} tolerates every taint."},
		"spec.tolerations[].value":    {what: "Value of the tolerated taint; empty matches any value."},
		"spec.tolerations[].effect":   {what: "Effect of the tolerated taint; empty matches any effect.", words: effects},
	}
	maps.Copy(out, composeNotes())
	for _, of := range []string{"spec.affinity[].", "spec.anti_affinity[]."} {
		out[of+"node"] = note{what: "Condition on the labels of a node, written like a constraint.", example: "disk = ssd"}
		out[of+"node.key"] = note{what: "Key of a node label."}
		out[of+"node.operator"] = note{what: "How the node's label is compared with values; default =.", words: operators}
		out[of+"node.values"] = note{what: "Values with which the node's label is compared."}
		out[of+"workload"] = note{what: "Id of another workload of the same namespace."}
		out[of+"group"] = note{what: "Group of workloads of the same namespace; it may be the workload's own group."}
		out[of+"tag"] = note{what: "Tag of workloads of the same namespace.", example: "tier=batch"}
		out[of+"by"] = note{what: "Key of a node label, or host: nodes with the same value are the same place; default host.", example: "zone"}
		out[of+"when"] = note{what: "must or prefer; default prefer.", words: whens}
		out[of+"weight"] = note{what: "Weight of a preferred rule; default 50. 100 counts like a whole node of load.", low: 1, high: bounds.MaxWeight}
	}
	for _, of := range []string{"spec.container", "spec.compose", "spec.vm"} {
		at := of + ".managed_volumes[]."
		out[at+"name"] = note{what: "Name of the volume on the node."}
		out[at+"driver"] = note{what: "Volume driver; default local."}
		out[at+"size_gb"] = note{what: "Size of the volume, such as 10Gi; as size_gb a whole number of GiB.", example: "10Gi"}
		out[at+"access_mode"] = note{what: "Access mode of the volume, in the words of its driver."}
		out[at+"fs_type"] = note{what: "File system of the volume, for drivers that create one."}
		out[at+"mount_path"] = note{what: "Path in the workload at which the volume is mounted."}
		out[at+"read_only"] = note{what: "Mounted read-only."}
		out[at+"retain_policy"] = note{what: "Whether the data of the volume is kept when the workload is deleted.", words: []string{"Delete", "Retain"}}
	}
	return out
}

// composeNotes returns the notes of the fields that a container has in common with a service of a Compose file.
func composeNotes() map[string]note {
	out := map[string]note{}
	for name, n := range map[string]note{
		"entrypoint":                 {what: "Program that the container runs instead of the entry point of the image, whose command is then dropped too: a list of words, or one string that is split as a shell does. An empty list means no entry point.", example: []any{"/bin/sh", "-c"}},
		"env_file":                   {what: "Files with variables NAME=value, which persysctl reads. Variables in env take precedence.", example: "web.env"},
		"working_dir":                {what: "Absolute path in which the program starts; default is that of the image.", example: "/srv"},
		"hostname":                   {what: "Host name of the container; default is its id.", example: "db"},
		"domainname":                 {what: "Domain of the container's host name.", example: "example.org"},
		"read_only":                  {what: "The file system of the image is read-only; volumes and tmpfs remain writable."},
		"init":                       {what: "Run an init process in the container, which forwards signals and reaps zombies."},
		"tty":                        {what: "Give the program a terminal. Its output is then one stream."},
		"stdin_open":                 {what: "Keep the standard input of the program open."},
		"tmpfs":                      {what: "Mounts in memory: PATH, or PATH:OPTIONS.", example: []any{"/run:size=64m,mode=1777"}},
		"ulimits":                    {what: "Limits of Linux on the processes: a number, or a mapping with soft and hard; -1 means no limit.", example: object{"nofile": 65536}},
		"ulimits[].soft":             {what: "Limit that a process may raise up to hard."},
		"ulimits[].hard":             {what: "Limit that no process may raise."},
		"sysctls":                    {what: "Kernel parameters of the container's own namespaces.", example: object{"net.core.somaxconn": 1024}},
		"shm_size":                   {what: "Size of /dev/shm in bytes, or with a unit; default is the engine's, 64m.", example: "256m"},
		"devices":                    {what: "Devices of the node: SOURCE[:TARGET[:PERMISSIONS]], the CDI name of a device, or mappings. CDI needs Docker 25.", example: []any{"/dev/fuse"}},
		"devices[].source":           {what: "Absolute path of the device on the node, or its CDI name."},
		"devices[].target":           {what: "Path of the device in the container; default is source."},
		"devices[].permissions":      {what: "Letters of r (read), w (write) and m (create); default rwm."},
		"device_cgroup_rules":        {what: "Devices that the container may use if it has a file for them: type, major:minor, permissions.", example: []any{"c 1:3 rwm"}},
		"gpus":                       {what: "GPUs that the engine's driver gives to the container: all, or a list of requests.", example: "all"},
		"gpus[].driver":              {what: "Driver of the engine, such as nvidia or cdi."},
		"gpus[].count":               {what: "Number of GPUs, or all; default all.", example: 1},
		"gpus[].device_ids":          {what: "Ids of the GPUs, instead of count.", example: []any{"0"}},
		"gpus[].capabilities":        {what: "Capabilities that the driver must have, in addition to gpu."},
		"gpus[].options":             {what: "Options of the driver."},
		"group_add":                  {what: "Further groups of the program, by name or number.", example: []any{"44"}},
		"extra_hosts":                {what: "Entries of /etc/hosts: NAME=ADDRESS, or a mapping. The address host-gateway stands for the node.", example: []any{"db=10.0.0.5"}},
		"dns":                        {what: "Addresses of DNS servers; default is the engine's.", example: []any{"10.0.0.53"}},
		"dns_search":                 {what: "Domains that are searched for short names.", example: []any{"example.org"}},
		"dns_opt":                    {what: "Options of the resolver.", example: []any{"ndots:2"}},
		"network_mode":               {what: "Network of the container: bridge (default), host (that of the node) or none.", words: networkModes, example: "host"},
		"pid":                        {what: "host: the container sees the processes of the node.", words: hostOnly},
		"ipc":                        {what: "Shared memory of the container; default is the engine's.", words: ipcModes, example: "private"},
		"uts":                        {what: "host: the container has the host name of the node.", words: hostOnly},
		"userns_mode":                {what: "host: the users of the container are those of the node, on an engine that maps them.", words: hostOnly},
		"cgroup":                     {what: "Control groups that the container sees: its own (private) or those of the node (host); default is the engine's.", words: cgroupModes},
		"cgroup_parent":              {what: "Control group of the node in which the container runs."},
		"runtime":                    {what: "OCI runtime of the engine, such as runc or nvidia; default is the engine's."},
		"cpuset":                     {what: "Processors that the container may use.", example: "0-3"},
		"label_file":                 {what: "Files with NAME=value lines, whose values become labels; labels take precedence. persysctl reads them.", example: "web.labels"},
		"cpu_shares":                 {what: "Weight of the container in the competition for processors; default 1024 for each core of its CPU limit.", low: 0, high: 262144, example: 2048},
		"cpu_period":                 {what: "Period of the CPU limit in microseconds; default 100000.", low: 1000, high: 1000000, example: 50000},
		"mem_swappiness":             {what: "How readily the kernel swaps memory out; only on nodes with cgroup v1.", low: 0, high: 100, example: 10},
		"oom_kill_disable":           {what: "At its memory limit the container waits instead of being killed; only on nodes with cgroup v1."},
		"mac_address":                {what: "MAC address of the container on the engine's default bridge; needs Docker 25.", example: "02:42:ac:11:00:07"},
		"platform":                   {what: "Platform of the image; default is that of the node. Nodes are not chosen by it: write a constraint too.", example: "linux/arm64"},
		"pull_policy":                {what: "When the image is pulled. Default is missing; the tag latest is looked up each time a container is made.", words: pullPolicies, example: "always"},
		"blkio_config":               {what: "Limits on disk I/O."},
		"blkio_config.weight":        {what: "Weight of the container in the competition for disks; default 500.", low: 10, high: 1000, example: 300},
		"blkio_config.weight_device": {what: "Weights for single block devices of the node."},
		"mem_reservation":            {what: "Memory that the container keeps when the node is short of it, in bytes or with a unit; at most the memory limit.", example: "64m"},
		"memswap_limit":              {what: "Limit of memory and swap together, in bytes or with a unit; needs a memory limit. 0 means no swap, -1 no limit.", example: "512m"},
		"logging":                    {what: "Log driver of the engine. By default logs are rotated: 3 files of 20 MB, unless the engine's own configuration says otherwise."},
		"logging.driver":             {what: "Name of the log driver. Only the output of json-file, local and journald can be read back.", example: "json-file"},
		"logging.options":            {what: "Options of the log driver. Values are sealed before they are stored.", example: object{"max-size": "10m"}},
		"labels":                     {what: "Labels of the container, in addition to metadata.", example: object{"team": "web"}},
		"annotations":                {what: "Annotations for the OCI runtime; needs Docker 24.", example: object{"com.example.owner": "web"}},
		"oom_score_adj":              {what: "How readily the kernel kills the container when the node is out of memory; higher is earlier.", low: -1000, high: 1000},
		"healthcheck":                {what: "Health check that the engine runs in the container, instead of that of the image. health_check, outside of container, is a check by the agent."},
		"healthcheck.test":           {what: "Command: one string for a shell, or a list that begins with CMD, CMD-SHELL or NONE.", example: []any{"CMD", "/healthy"}},
		"healthcheck.interval":       {what: "Time between two checks; default 30s.", example: "10s"},
		"healthcheck.timeout":        {what: "Time limit of a check; default 30s.", example: "3s"},
		"healthcheck.start_period":   {what: "Time after the start in which failed checks do not count.", example: "30s"},
		"healthcheck.start_interval": {what: "Time between two checks in the start period; needs Docker 25.", example: "1s"},
		"healthcheck.retries":        {what: "Failed checks in a row that make the container unhealthy; default 3.", low: 0, high: 1000},
		"healthcheck.disable":        {what: "Switch the health check of the image off."},
		"expose":                     {what: "Ports of the container that are not published.", example: []any{"8080"}},
		"networks":                   {what: "Networks of the namespace that the container joins, made with persysctl network create: names, or a mapping of names to settings. Not with network_mode.", example: []any{"back"}},
		"endpoint_mode":              {what: "What the name of the service, which is the group or the workload, leads to in its networks: vip, an address that is balanced over the instances, or dnsrr, the addresses of the instances. Default vip.", words: endpointModes},
		"networks[].name":            {what: "Name of the network."},
		"networks[].aliases":         {what: "Further names of the container in the network, for containers on the same node.", example: []any{"db"}},
		"secrets":                    {what: "Secrets of the namespace that the container gets as files in memory: names, or mappings.", example: []any{"db-password"}},
		"configs":                    {what: "Configs of the namespace that the container gets as files in memory: names, or mappings.", example: []any{object{"source": "web-conf", "target": "/etc/web.conf"}}},
		"env_secrets":                {what: "Environment variables that have the value of a secret, without a newline at its end: variable and name of the secret.", example: object{"DB_PASSWORD": "db-password"}},
		"env_configs":                {what: "Environment variables that have the value of a config, without a newline at its end: variable and name of the config.", example: object{"LEVEL": "log-level"}},
		"on_change":                  {what: "What a new version of a secret or config does: restart (default) recreates the container, in a group by its update policy; nothing leaves the container until it is recreated or restarted for another reason; signal NAME changes the files in the running container and sends it the signal.", example: "signal SIGHUP"},
	} {
		out["spec.container."+name] = n
	}
	out["spec.container.blkio_config.weight_device[].path"] = note{what: "Path of the block device.", example: "/dev/sda"}
	out["spec.container.blkio_config.weight_device[].weight"] = note{what: "Weight for the device.", low: 10, high: 1000, example: 300}
	for key, what := range map[string]string{
		"device_read_bps": "Bytes that the container may read in a second", "device_read_iops": "Reads of the container in a second",
		"device_write_bps": "Bytes that the container may write in a second", "device_write_iops": "Writes of the container in a second",
	} {
		at := "spec.container.blkio_config." + key
		out[at] = note{what: what + ", for block devices of the node."}
		out[at+"[].path"] = note{what: "Path of the block device.", example: "/dev/sda"}
		out[at+"[].rate"] = note{what: what + ": a number, or a size such as 10m.", example: "10m"}
	}
	for key, what := range map[string]string{
		"post_start": "Commands that run in the container after each start by the agent. If one fails, the container is stopped and its start has failed.",
		"pre_stop":   "Commands that run in the container before the agent stops it, within stop_grace_period. A failed command does not prevent the stop.",
	} {
		at := "spec.container." + key
		out[at] = note{what: what}
		out[at+"[].command"] = note{what: "Command: a list of words, or one string that is split as a shell does.", example: []any{"/warm-up"}}
		out[at+"[].user"] = note{what: "User that runs the command: a name, or UID[:GID]; default is the user of the container.", example: "1000:1000"}
		out[at+"[].privileged"] = note{what: "The command has all capabilities; needs a policy that allows privileged containers."}
		out[at+"[].working_dir"] = note{what: "Working directory of the command; default is that of the container.", example: "/data"}
		out[at+"[].environment"] = note{what: "Environment variables besides those of the container. Values are sealed before they are stored.", example: object{"LEVEL": "1"}}
	}
	for _, of := range []string{"secrets", "configs"} {
		at, folder := "spec.container."+of+"[].", "/SOURCE"
		if of == "secrets" {
			folder = secretsFolder + folder
		}
		out[at+"source"] = note{what: "Name of the " + strings.TrimSuffix(of, "s") + "."}
		out[at+"target"] = note{what: "Path of the file in the container; default " + folder + "."}
		out[at+"uid"] = note{what: "Owner of the file, as a number; default 0.", example: "1000"}
		out[at+"gid"] = note{what: "Group of the file, as a number; default 0.", example: "1000"}
		out[at+"mode"] = note{what: "Permission bits of the file: octal with a leading 0, otherwise decimal; default 0444.", example: "0400"}
		out[at+"on_change"] = note{what: "on_change for this secret or config; default is that of the container.", example: "signal SIGHUP"}
	}
	return out
}
