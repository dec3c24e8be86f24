package spec

// notes holds the description of every field and the rules that Validate adds to the decoder's
// tables. SchemaFields reports fields without a description.
func notes() map[string]note {
	out := map[string]note{
		"workload_id":   {what: "The workload's name: a letter or digit, then up to 127 letters, digits, '_', '.' or '-'.", example: "web"},
		"desired_state": {what: "Desired state; default running.", words: desiredWords, example: "running"},
		"revision_id":   {what: "Your own name of this revision; stored and shown, never compared."},
		"request_id":    {what: "UUIDv7 under which this apply happens at most once."},
		"spec":          {what: "The same fields below spec, as the API has them."},

		"spec.type":          {what: "Type of the workload; default is the one of container, compose and vm that is given.", words: types},
		"spec.container":     {what: "A container."},
		"spec.compose":       {what: "A Compose stack."},
		"spec.vm":            {what: "A virtual machine; it is always exclusive."},
		"spec.resources":     {what: "Resources that are reserved on the node. For a container they are also its limits."},
		"spec.metadata":      {what: "Labels on the container."},
		"spec.labels":        {what: "Labels that the node must carry."},
		"spec.group":         {what: "Placement spreads the members of a group over nodes."},
		"spec.namespace":     {what: "Namespace, which cannot be changed later; default is the present one, else \"default\".", example: "shop"},
		"spec.count":         {what: "Number of copies: NAME-0, NAME-1, … in group NAME.", low: 0, high: MaxCount},
		"spec.update":        {what: "How the copies of a count are updated to a new specification; without it all at once."},
		"spec.constraints":   {what: "Nodes on which it may run: \"region = eu\", \"disk in ssd,nvme\", \"gpu exists\".", example: []any{"region = eu"}},
		"spec.tolerations":   {what: "Taints that the workload tolerates: \"dedicated=web:NoSchedule\"."},
		"spec.exclusive":     {what: "Never runs on two machines at once, even if a machine is lost."},
		"spec.on_lost_lease": {what: "What happens to an exclusive workload on a node that is cut off from the schedulers; stop needs a node with self_fencing.", words: []string{"keep", "stop"}},
		"spec.priority":      {what: "Workloads of higher priority are placed first and may evict others.", low: -MaxPriority, high: MaxPriority},

		"spec.health_check":                      {what: "Health check: exactly one of http, tcp and command."},
		"spec.health_check.http":                 {what: "Path for GET on port; a status from 200 to 399 is healthy.", example: "/ready"},
		"spec.health_check.tcp":                  {what: "Healthy if port accepts a connection."},
		"spec.health_check.command":              {what: "Command that runs in the workload; exit code 0 is healthy. Not for virtual machines."},
		"spec.health_check.port":                 {what: "Port inside the workload, for http and tcp.", low: 1, high: 65535},
		"spec.health_check.service":              {what: "Service of a Compose stack in which command runs."},
		"spec.health_check.interval_seconds":     {what: "Time between two checks in whole seconds; default 10 s.", example: "10s"},
		"spec.health_check.timeout_seconds":      {what: "Time limit of one check in whole seconds; default 3 s.", example: "3s"},
		"spec.health_check.retries":              {what: "Consecutive failures that make it unhealthy; default 3.", low: 0, high: 100},
		"spec.health_check.start_period_seconds": {what: "Time after the start in which failures do not count; whole seconds.", example: "30s"},
		"spec.update.max_parallel":               {what: "Copies that may be unavailable during the update; default 1.", low: 0, high: MaxCount},
		"spec.update.min_healthy_time_seconds":   {what: "Time that an updated copy must be healthy before the next one is updated; default 10 s.", example: "10s"},
		"spec.update.healthy_deadline_seconds":   {what: "Time limit for an updated copy to become healthy; default 5 min. After it the update pauses.", example: "5m"},
		"spec.update.auto_revert":                {what: "Roll back to the previous specification instead of pausing."},
		"spec.resources.cpu_millicores":          {what: "CPU cores, such as 0.25 or 250m; as cpu_millicores a whole number of millicores.", example: "250m"},
		"spec.resources.memory_mb":               {what: "Memory, such as 128Mi or 1Gi; as memory_mb a whole number of MiB.", example: "128Mi"},
		"spec.resources.disk_gb":                 {what: "Disk space from storage_pool, such as 10Gi; as disk_gb a whole number of GiB.", example: "10Gi"},
		"spec.resources.storage_pool":            {what: "Storage pool of the node that provides disk."},

		"spec.container.image":                  {what: "Image reference.", example: "nginx:1.27"},
		"spec.container.command":                {what: "List of words, or one string that is split as a shell does."},
		"spec.container.env":                    {what: "Environment: a mapping, or a list of KEY=VALUE. Values are sealed before they are stored."},
		"spec.container.ports":                  {what: "\"8080:80\", \"53:53/udp\", \"80\" for any host port, or mappings."},
		"spec.container.ports[].host_port":      {what: "Port on the node; 0 lets the engine choose.", low: 0, high: 65535},
		"spec.container.ports[].container_port": {what: "Port in the container.", low: 1, high: 65535},
		"spec.container.ports[].name":           {what: "Name of the port, for DNS."},
		"spec.container.ports[].protocol":       {what: "tcp or udp; default tcp.", words: protocols},
		"spec.container.volumes":                {what: "\"/host/path:/container/path\", \":ro\" for read-only, or mappings."},

		"spec.container.volumes[].host_path":      {what: "Folder or file on the node."},
		"spec.container.volumes[].container_path": {what: "Path in the container."},
		"spec.container.volumes[].read_only":      {what: "Mounted read-only."},
		"spec.container.restart_policy":           {what: "When the engine restarts the container.", words: restartPolicies},
		"spec.container.privileged":               {what: "Runs with all privileges on the node; default false."},
		"spec.container.managed_volumes":          {what: "Named volumes that the node provides."},

		"spec.compose.inline_yaml":     {what: "The Compose file as text (inline), or its path (file, which persysctl reads)."},
		"spec.compose.git_repo":        {what: "Repository with the Compose file: URL#branch, or {repo, ref, credentials}."},
		"spec.compose.git.repo":        {what: "URL of the repository."},
		"spec.compose.git_ref":         {what: "Branch, tag or commit."},
		"spec.compose.git_credentials": {what: "Name of credentials that are configured on the node."},
		"spec.compose.source_type":     {what: "inline or git; default is the one that is given."},
		"spec.compose.managed_volumes": {what: "Named volumes of the Compose file that the node provides."},
		"spec.compose.env":             {what: "Variables of the Compose file, and COMPOSE_PROFILES."},

		"spec.vm.vcpus":                     {what: "Processors."},
		"spec.vm.memory_mb":                 {what: "Memory, such as 2Gi; as memory_mb a whole number of MiB.", example: "2Gi"},
		"spec.vm.os_image":                  {what: "Disk image on the node from which the first disk is created."},
		"spec.vm.disks":                     {what: "Disks; the first one holds the operating system."},
		"spec.vm.disks[].pool_name":         {what: "The node's storage pool."},
		"spec.vm.disks[].size_gb":           {what: "Size, such as 20Gi; as size_gb a whole number of GiB.", example: "20Gi"},
		"spec.vm.disks[].mount_point":       {what: "Device in the guest.", example: "vda"},
		"spec.vm.networks":                  {what: "Names of the node's networks, or mappings."},
		"spec.vm.networks[].bridge":         {what: "Name of the node's network."},
		"spec.vm.networks[].dhcp":           {what: "Get the address by DHCP."},
		"spec.vm.networks[].static_ip":      {what: "A fixed address."},
		"spec.vm.cloud_init":                {what: "User data as one string, or a mapping of the parts of cloud-init."},
		"spec.vm.cloud_init.user_data":      {what: "User data (#cloud-config), or a file with it (user_data_file)."},
		"spec.vm.cloud_init.meta_data":      {what: "Meta data, or the file that holds it (meta_data_file)."},
		"spec.vm.cloud_init.network_config": {what: "Network configuration, or the file that holds it (network_config_file)."},
		"spec.vm.cloud_init.vendor_data":    {what: "Vendor data, or the file that holds it (vendor_data_file)."},
		"spec.vm.login":                     {what: "Account that may log in; added to the user data of cloud-init."},
		"spec.vm.login.user":                {what: "Name of the account."},
		"spec.vm.login.password":            {what: "Password of the account, stored sealed; prefer keys."},
		"spec.vm.login.ssh_authorized_keys": {what: "SSH public keys of the account."},
		"spec.vm.managed_volumes":           {what: "Named volumes that the node provides."},

		"spec.constraints[].key":      {what: "Label of the node."},
		"spec.constraints[].operator": {what: "Comparison; default =.", words: operators},
		"spec.constraints[].values":   {what: "Values to compare with."},
		"spec.tolerations[].key":      {what: "The taint's key."},
		"spec.tolerations[].value":    {what: "The taint's value; empty matches any."},
		"spec.tolerations[].effect":   {what: "The taint's effect; empty matches any.", words: effects},
	}
	for _, of := range []string{"spec.container", "spec.compose", "spec.vm"} {
		at := of + ".managed_volumes[]."
		out[at+"name"] = note{what: "The volume's name on the node."}
		out[at+"driver"] = note{what: "Volume driver; default local."}
		out[at+"size_gb"] = note{what: "Size, such as 10Gi; as size_gb a whole number of GiB.", example: "10Gi"}
		out[at+"access_mode"] = note{what: "Access mode as the driver names it."}
		out[at+"fs_type"] = note{what: "File system, for drivers that create one."}
		out[at+"mount_path"] = note{what: "Path in the workload."}
		out[at+"read_only"] = note{what: "Mounted read-only."}
		out[at+"retain_policy"] = note{what: "Whether the data is kept when the workload is deleted.", words: []string{"Delete", "Retain"}}
	}
	return out
}
