package asks

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
)

// fieldsOf adds the keys of a type of compose-go to out, as paths in a Compose file.
func fieldsOf(typ reflect.Type, at string, within []reflect.Type, out *[]string) {
	if slices.Contains(within, typ) {
		return
	}
	within = append(within[:len(within):len(within)], typ)
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		fieldsOf(typ.Elem(), at, within, out)
	case reflect.Map:
		if typ.Elem().Kind() == reflect.Pointer || typ.Elem().Kind() == reflect.Struct {
			fieldsOf(typ.Elem(), at, within, out)
			return
		}
		*out = append(*out, at)
	case reflect.Struct:
		for i := range typ.NumField() {
			name, options, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
			if name == "" {
				name = strings.ToLower(typ.Field(i).Name) // the name that a YAML encoder gives to a field without a tag
			}
			if typ.Field(i).IsExported() && name != "-" && !strings.Contains(options, "inline") {
				fieldsOf(typ.Field(i).Type, strings.TrimPrefix(at+"."+name, "."), within, out)
			}
		}
	default:
		*out = append(*out, at)
	}
}

// judgedFields are the keys of a Compose file for which Project makes asks. Each key is named, also those within other
// keys, so that a later key within them is found.
const judgedFields = `
	annotations blkio_config.weight blkio_config.weight_device.weight cap_add cap_drop cgroup_parent cgroup cpu_period cpu_quota
	cpu_rt_runtime cpus cpu_shares configs.source credential_spec.config credential_spec.file credential_spec.registry deploy.replicas
	deploy.resources.limits.cpus deploy.resources.limits.memory deploy.resources.limits.pids
	deploy.resources.limits.devices.capabilities deploy.resources.limits.devices.driver deploy.resources.limits.devices.device_ids
	deploy.resources.limits.generic_resources.discrete_resource_spec.kind
	deploy.resources.reservations.devices.capabilities deploy.resources.reservations.devices.driver
	deploy.resources.reservations.devices.device_ids deploy.resources.reservations.generic_resources.discrete_resource_spec.kind
	device_cgroup_rules devices.source env_file.path external_links group_add gpus.capabilities gpus.driver gpus.device_ids
	image ipc isolation label_file logging.driver logging.options log_driver mem_limit memswap_limit mac_address net network_mode
	networks.driver_opts networks.mac_address oom_kill_disable oom_score_adj pid pids_limit platform ports.host_ip ports.published
	ports.protocol privileged runtime scale secrets.source security_opt storage_opt sysctls ulimits.single ulimits.soft ulimits.hard
	use_api_socket user userns_mode uts volume_driver volumes.type volumes.source volumes.read_only volumes.bind.selinux
	volumes.bind.propagation volumes_from
	pre_start.image pre_start.user pre_start.privileged post_start.image post_start.user post_start.privileged
	pre_stop.image pre_stop.user pre_stop.privileged
	networks/name networks/driver networks/driver_opts networks/ipam.driver networks/ipam.options networks/ipam.config.subnet networks/external
	volumes/name volumes/driver volumes/driver_opts volumes/external
	files/file`

// harmlessFields are the other keys, with the reason why Project makes no ask for them. KEY.* stands for all keys within
// a key, also later ones.
var harmlessFields = map[string]string{
	"build.* develop.* dockerfile":                            "nodes build nothing",
	"cpu_count cpu_percent cpu_rt_period models.* provider.*": "schedulers and agents refuse them",
	`name profiles attach extends.* depends_on.* deploy.mode deploy.update_config.* deploy.rollback_config.* deploy.endpoint_mode
	deploy.placement.* deploy.restart_policy.* restart stop_grace_period stop_signal pull_policy links`: "they say when containers of the stack run",
	"labels deploy.labels volumes.volume.labels networks/labels volumes/labels files/labels": "labels that give ownership are refused, see package stack",
	`command entrypoint environment env_file.required env_file.format init tty stdin_open working_dir
	healthcheck.test healthcheck.timeout healthcheck.interval healthcheck.retries healthcheck.start_period healthcheck.start_interval healthcheck.disable
	pre_start.command pre_start.working_dir pre_start.environment pre_start.per_replica post_start.command post_start.working_dir
	post_start.environment post_start.per_replica pre_stop.command pre_stop.working_dir pre_stop.environment pre_stop.per_replica`: "they say what runs in the container",
	`configs.target configs.uid configs.gid configs.mode secrets.target secrets.uid secrets.gid secrets.mode
	files/name files/environment files/content files/external files/driver files/driver_opts files/template_driver`: "files in the container, from the stack or the namespace",
	`devices.target devices.permissions ports.target ports.name ports.mode ports.app_protocol expose volumes.target volumes.consistency
	volumes.bind.create_host_path volumes.bind.recursive volumes.volume.nocopy volumes.volume.subpath volumes.image.subpath`: "the source is judged",
	`gpus.count gpus.options deploy.resources.limits.devices.count deploy.resources.limits.devices.options
	deploy.resources.limits.generic_resources.discrete_resource_spec.value deploy.resources.reservations.devices.count
	deploy.resources.reservations.devices.options deploy.resources.reservations.generic_resources.discrete_resource_spec.value`: "the kind of the device is judged",
	`deploy.resources.reservations.cpus deploy.resources.reservations.memory deploy.resources.reservations.pids`: "a node reserves what the specification says",
	`cpuset mem_reservation mem_swappiness shm_size read_only tmpfs volumes.tmpfs.size volumes.tmpfs.mode`:       "they stay within the container's limits",
	`blkio_config.device_read_bps.path blkio_config.device_read_bps.rate blkio_config.device_read_iops.path blkio_config.device_read_iops.rate
	blkio_config.device_write_bps.path blkio_config.device_write_bps.rate blkio_config.device_write_iops.path blkio_config.device_write_iops.rate
	blkio_config.weight_device.path`: "they slow the container down, or the weight is judged",
	"container_name hostname domainname dns dns_opt dns_search extra_hosts":                                                                                                         "names; an engine refuses a name that is taken",
	"networks.aliases networks.gw_priority networks.interface_name networks.ipv4_address networks.ipv6_address networks.link_local_ips networks.priority":                           "the network is judged",
	"networks/ipam.config.gateway networks/ipam.config.ip_range networks/ipam.config.aux_addresses networks/internal networks/attachable networks/enable_ipv4 networks/enable_ipv6": "they stay within the subnet, which is judged",
	"log_opt": "Compose does not read it",
}

// TestEveryKeyOfComposeIsJudgedOrHarmless: a key that a later version of compose-go adds fails this test, until Project
// makes an ask for it or the list says why it needs none.
func TestEveryKeyOfComposeIsJudgedOrHarmless(t *testing.T) {
	known := strings.Fields(judgedFields)
	for _, k := range known {
		if strings.HasSuffix(k, ".*") {
			t.Errorf("judgedFields has the pattern %s, want that it names each key within it", k)
		}
	}
	for keys, why := range harmlessFields {
		if why == "" {
			t.Errorf("harmlessFields has no reason for the keys %s, want one", keys)
		}
		known = append(known, strings.Fields(keys)...)
	}
	used := map[string]bool{}
	for at, typ := range map[string]any{"": types.ServiceConfig{}, "networks/": types.NetworkConfig{}, "volumes/": types.VolumeConfig{}, "files/": types.FileObjectConfig{}} {
		var keys []string
		fieldsOf(reflect.TypeOf(typ), "", nil, &keys)
		for _, key := range keys {
			found := false
			for _, k := range known {
				within, all := strings.CutSuffix(k, "*")
				if at+key == k || all && strings.HasPrefix(at+key, within) {
					found, used[k] = true, true
				}
			}
			if !found {
				t.Errorf("Compose has the key %s%s, which is in neither list: let Project make an ask for it, or add it to harmlessFields with a reason", at, key)
			}
		}
	}
	for _, k := range known {
		if !used[k] {
			t.Errorf("the lists of this test have the key %s, which Compose does not have", k)
		}
	}
}
