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
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
			if name != "" && name != "-" && name != "#extensions" {
				fieldsOf(typ.Field(i).Type, strings.TrimPrefix(at+"."+name, "."), within, out)
			}
		}
	default:
		*out = append(*out, at)
	}
}

// judgedFields are the keys of a Compose file for which Project makes asks.
const judgedFields = `
	annotations blkio_config cap_add cap_drop cgroup_parent cgroup cpu_period cpu_quota cpu_rt_runtime cpus cpu_shares configs.source
	credential_spec deploy.replicas deploy.resources device_cgroup_rules devices.source env_file.path external_links group_add gpus
	image ipc isolation label_file logging log_driver mem_limit memswap_limit mac_address net network_mode networks.driver_opts
	networks.mac_address oom_kill_disable oom_score_adj pid pids_limit platform ports.host_ip ports.published ports.protocol
	privileged runtime scale secrets.source security_opt storage_opt sysctls ulimits use_api_socket user userns_mode uts
	volume_driver volumes.type volumes.source volumes.read_only volumes.bind.selinux volumes.bind.propagation volumes_from
	pre_start post_start pre_stop
	networks/name networks/driver networks/driver_opts networks/ipam.driver networks/ipam.options networks/ipam.config.subnet networks/external
	volumes/name volumes/driver volumes/driver_opts volumes/external
	files/file`

// harmlessFields are the other keys, with the reason why Project makes no ask for them.
var harmlessFields = map[string]string{
	"build develop dockerfile":                            "nodes build nothing",
	"cpu_count cpu_percent cpu_rt_period models provider": "schedulers and agents refuse them",
	"name profiles attach extends depends_on deploy.mode deploy.update_config deploy.rollback_config deploy.endpoint_mode deploy.placement deploy.restart_policy restart stop_grace_period stop_signal pull_policy links":    "they say when containers of the stack run",
	"labels deploy.labels volumes.volume.labels networks/labels volumes/labels files/labels":                                                                                                                                 "labels that give ownership are refused, see package stack",
	"command entrypoint environment env_file.required env_file.format healthcheck init tty stdin_open working_dir":                                                                                                           "they say what runs in the container",
	"configs.target configs.uid configs.gid configs.mode secrets.target secrets.uid secrets.gid secrets.mode files/name files/environment files/content files/external files/driver files/driver_opts files/template_driver": "files in the container, from the stack or the namespace",
	"devices.target devices.permissions ports.target ports.name ports.mode ports.app_protocol expose volumes.target":                                                                                                         "the source is judged",
	"cpuset mem_reservation mem_swappiness shm_size read_only tmpfs volumes.tmpfs":                                                                                                                                           "they stay within the container's limits",
	"container_name hostname domainname dns dns_opt dns_search extra_hosts":                                                                                                                                                  "names; an engine refuses a name that is taken",
	"networks.aliases networks.gw_priority networks.interface_name networks.ipv4_address networks.ipv6_address networks.link_local_ips networks.priority":                                                                    "the network is judged",
	"networks/ipam.config.gateway networks/ipam.config.ip_range networks/ipam.config.aux_addresses networks/internal networks/attachable networks/enable_ipv4 networks/enable_ipv6":                                          "they stay within the subnet, which is judged",
	"log_opt": "Compose does not read it",
	"volumes.consistency volumes.bind.create_host_path volumes.bind.recursive volumes.volume.nocopy volumes.volume.subpath volumes.image.subpath": "the source is judged",
}

// TestEveryKeyOfComposeIsJudgedOrHarmless: a key that a later version of compose-go adds fails this test, until Project
// makes an ask for it or the list says why it needs none.
func TestEveryKeyOfComposeIsJudgedOrHarmless(t *testing.T) {
	known := strings.Fields(judgedFields)
	for keys, why := range harmlessFields {
		if why == "" {
			t.Errorf("%s: a reason is missing", keys)
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
				if at+key == k || strings.HasPrefix(at+key, k+".") {
					found, used[k] = true, true
				}
			}
			if !found {
				t.Errorf("Compose has the key %s%s: make an ask for it, or say why it needs none", at, key)
			}
		}
	}
	for _, k := range known {
		if !used[k] {
			t.Errorf("Compose has no key %s", k)
		}
	}
}
