package spec

// notes say of every field what people want to read, and what Validate adds to
// the decoder's tables. SchemaFields finds those that are missing here.
func notes() map[string]note {
	out := map[string]note{
		"workload_id":   {what: "The workload's name: a letter or digit, then up to 127 letters, digits, '_', '.' or '-'.", example: "web"},
		"desired_state": {what: "What it is to be; default running.", words: desiredWords, example: "running"},
		"revision_id":   {what: "Your own name of this revision; stored and shown, never compared."},
		"request_id":    {what: "UUIDv7 under which this apply happens at most once."},
		"spec":          {what: "The same fields below spec, as the API has them."},

		"spec.type":          {what: "Known from which of container, compose and vm is given.", words: types},
		"spec.container":     {what: "A container."},
		"spec.compose":       {what: "A Compose stack."},
		"spec.vm":            {what: "A virtual machine; it is always exclusive."},
		"spec.resources":     {what: "What is reserved on the node, and the limits of a container."},
		"spec.metadata":      {what: "Labels on the container."},
		"spec.labels":        {what: "Labels that the node must carry."},
		"spec.group":         {what: "Members of a group are kept apart by placement."},
		"spec.namespace":     {what: "Where it belongs, for good; default where it is already, else \"default\".", example: "shop"},
		"spec.count":         {what: "So many copies, NAME-0, NAME-1, … in group NAME.", low: 0, high: MaxCount},
		"spec.update":        {what: "How the copies of a count are replaced by another specification; without it all at once."},
		"spec.constraints":   {what: "Where it may run: \"region = eu\", \"disk in ssd,nvme\", \"gpu exists\".", example: []any{"region = eu"}},
		"spec.tolerations":   {what: "Taints of nodes that do not keep it away: \"dedicated=web:NoSchedule\"."},
		"spec.exclusive":     {what: "Never run by two machines, also when one is lost."},
		"spec.on_lost_lease": {what: "What an exclusive workload does on a machine that is cut off; stop needs a node with self_fencing.", words: []string{"keep", "stop"}},
		"spec.priority":      {what: "Who is placed first, and who makes room.", low: -MaxPriority, high: MaxPriority},

		"spec.health_check":                      {what: "How to tell that it does its work: exactly one of http, tcp and command."},
		"spec.health_check.http":                 {what: "A path that answers GET on port with a status from 200 to 399.", example: "/ready"},
		"spec.health_check.tcp":                  {what: "Something listens on port."},
		"spec.health_check.command":              {what: "Runs in the workload and ends with 0; not for virtual machines."},
		"spec.health_check.port":                 {what: "The workload's own port, for http and tcp.", low: 1, high: 65535},
		"spec.health_check.service":              {what: "The service of a Compose stack that command runs in."},
		"spec.health_check.interval_seconds":     {what: "Time between two checks, 10 s unless said; whole seconds.", example: "10s"},
		"spec.health_check.timeout_seconds":      {what: "How long one may take, 3 s unless said; whole seconds.", example: "3s"},
		"spec.health_check.retries":              {what: "Failures in a row that make it unhealthy, 3 unless said.", low: 0, high: 100},
		"spec.health_check.start_period_seconds": {what: "Time after its start in which failures do not count; whole seconds.", example: "30s"},
		"spec.update.max_parallel":               {what: "How many copies may be unavailable while the update goes on, 1 unless said.", low: 0, high: MaxCount},
		"spec.update.min_healthy_time_seconds":   {what: "How long a changed copy must be healthy before it counts, 10 s unless said.", example: "10s"},
		"spec.update.healthy_deadline_seconds":   {what: "How long it may take until then, 5 min unless said; past it the update pauses.", example: "5m"},
		"spec.update.auto_revert":                {what: "Go back to what the group was, instead of pausing."},
		"spec.resources.cpu_millicores":          {what: "Cores, 0.25 or 250m; as cpu_millicores a whole number.", example: "250m"},
		"spec.resources.memory_mb":               {what: "128Mi, 1Gi; as memory_mb a whole number of MiB.", example: "128Mi"},
		"spec.resources.disk_gb":                 {what: "Taken from storage_pool: 10Gi; as disk_gb a whole number of GiB.", example: "10Gi"},
		"spec.resources.storage_pool":            {what: "The node's pool that disk is taken from."},

		"spec.container.image":                  {what: "Image reference.", example: "nginx:1.27"},
		"spec.container.command":                {what: "A list of words, or one text that is split as a shell does."},
		"spec.container.env":                    {what: "Environment: a mapping, or a list of KEY=VALUE. Values are sealed before they are stored."},
		"spec.container.ports":                  {what: "\"8080:80\", \"53:53/udp\", \"80\" for any host port, or mappings."},
		"spec.container.ports[].host_port":      {what: "Port on the node; 0 lets the engine choose.", low: 0, high: 65535},
		"spec.container.ports[].container_port": {what: "Port in the container.", low: 1, high: 65535},
		"spec.container.ports[].name":           {what: "Name of the port, for DNS."},
		"spec.container.ports[].protocol":       {what: "tcp or udp; default tcp.", words: protocols},
		"spec.container.volumes":                {what: "\"/host/path:/container/path\", \":ro\" for read-only, or mappings."},

		"spec.container.volumes[].host_path":      {what: "Folder or file on the node."},
		"spec.container.volumes[].container_path": {what: "Where the container sees it."},
		"spec.container.volumes[].read_only":      {what: "The container cannot write."},
		"spec.container.restart_policy":           {what: "When the engine starts it again.", words: restartPolicies},
		"spec.container.privileged":               {what: "All rights on the node; default false."},
		"spec.container.managed_volumes":          {what: "Volumes by name, which the node provides."},

		"spec.compose.inline_yaml":     {what: "The Compose file itself (inline), or the file that holds it (file, read by persysctl)."},
		"spec.compose.git_repo":        {what: "A repository with the Compose file: URL#branch, or {repo, ref, credentials}."},
		"spec.compose.git.repo":        {what: "URL of the repository."},
		"spec.compose.git_ref":         {what: "Branch, tag or commit."},
		"spec.compose.git_credentials": {what: "The name of credentials that the node keeps."},
		"spec.compose.source_type":     {what: "inline or git; known from which is given."},
		"spec.compose.managed_volumes": {what: "Volumes of the Compose file that the node provides, by their names there."},
		"spec.compose.env":             {what: "Variables of the Compose file, and COMPOSE_PROFILES."},

		"spec.vm.vcpus":                     {what: "Processors."},
		"spec.vm.memory_mb":                 {what: "2Gi; as memory_mb a whole number of MiB.", example: "2Gi"},
		"spec.vm.os_image":                  {what: "Disk image on the node that the first disk starts from."},
		"spec.vm.disks":                     {what: "Disks, the first one with the system."},
		"spec.vm.disks[].pool_name":         {what: "The node's storage pool."},
		"spec.vm.disks[].size_gb":           {what: "20Gi; as size_gb a whole number of GiB.", example: "20Gi"},
		"spec.vm.disks[].mount_point":       {what: "Device in the guest.", example: "vda"},
		"spec.vm.networks":                  {what: "Names of the node's networks, or mappings."},
		"spec.vm.networks[].bridge":         {what: "Name of the node's network."},
		"spec.vm.networks[].dhcp":           {what: "Ask for an address."},
		"spec.vm.networks[].static_ip":      {what: "A fixed address."},
		"spec.vm.cloud_init":                {what: "The user data itself, or its parts."},
		"spec.vm.cloud_init.user_data":      {what: "#cloud-config, or the file that holds it (user_data_file)."},
		"spec.vm.cloud_init.meta_data":      {what: "Meta data, or the file that holds it (meta_data_file)."},
		"spec.vm.cloud_init.network_config": {what: "Network configuration, or the file that holds it (network_config_file)."},
		"spec.vm.cloud_init.vendor_data":    {what: "Vendor data, or the file that holds it (vendor_data_file)."},
		"spec.vm.login":                     {what: "Who may log in: put into the user data of cloud-init."},
		"spec.vm.login.user":                {what: "Name of the account."},
		"spec.vm.login.password":            {what: "Its password, sealed; better are keys."},
		"spec.vm.login.ssh_authorized_keys": {what: "Public keys that may log in."},
		"spec.vm.managed_volumes":           {what: "Volumes by name, which the node provides."},

		"spec.constraints[].key":      {what: "Label of the node."},
		"spec.constraints[].operator": {what: "How it is compared; default =.", words: operators},
		"spec.constraints[].values":   {what: "With what."},
		"spec.tolerations[].key":      {what: "The taint's key."},
		"spec.tolerations[].value":    {what: "The taint's value; empty is any."},
		"spec.tolerations[].effect":   {what: "The taint's effect; empty is any.", words: effects},
	}
	for _, of := range []string{"spec.container", "spec.compose", "spec.vm"} {
		at := of + ".managed_volumes[]."
		out[at+"name"] = note{what: "The volume's name on the node."}
		out[at+"driver"] = note{what: "Who provides it; default local."}
		out[at+"size_gb"] = note{what: "10Gi; as size_gb a whole number of GiB.", example: "10Gi"}
		out[at+"access_mode"] = note{what: "As the driver knows it."}
		out[at+"fs_type"] = note{what: "File system, for drivers that make one."}
		out[at+"mount_path"] = note{what: "Where the workload sees it."}
		out[at+"read_only"] = note{what: "The workload cannot write."}
		out[at+"retain_policy"] = note{what: "Whether the data outlives the workload.", words: []string{"Delete", "Retain"}}
	}
	return out
}
