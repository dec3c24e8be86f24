package libvirt

import (
	"strings"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/nocloud"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"gopkg.in/yaml.v3"
)

// maxSeed bounds each document of cloud-init and all of them together, in bytes
// (contract/semantics.md, section 12).
const maxSeed = 256 << 10

// seedPlan is the NoCloud seed except for what only the machine's networks tell.
type seedPlan struct {
	user, meta, network, vendor string
}

func badSeed(format string, args ...any) error {
	return driver.Errorf(driver.CloudInitInvalid, "ensure", "cloud-init-invalid: "+format, args...)
}

// planSeed reads what a specification says to cloud-init; nil when it wants no seed: it says nothing,
// and its disk is not made from an image, so that nobody waits for one.
func planSeed(id driver.ID, vm *agentv1.VMSpec) (*seedPlan, error) {
	c := vm.GetCloudInitConfig()
	static := false
	for _, n := range vm.Networks {
		static = static || n.IpAddress != ""
	}
	if vm.CloudInit == "" && c.GetUserData() == "" && c.GetMetaData() == "" && c.GetNetworkConfig() == "" &&
		c.GetVendorData() == "" && vm.Login == nil && vm.OsImage == "" && !static {
		return nil, nil
	}
	// user_data of the message wins over the text (contract/wire-agent.md).
	user := c.GetUserData()
	if user == "" {
		user = vm.CloudInit
	}
	s := &seedPlan{user: nocloud.Plain(user), meta: c.GetMetaData(), network: c.GetNetworkConfig(), vendor: c.GetVendorData()}
	total := 0
	for _, part := range []nocloud.File{{Name: "user_data", Text: s.user}, {Name: "meta_data", Text: s.meta}, {Name: "network_config", Text: s.network}, {Name: "vendor_data", Text: s.vendor}} {
		if total += len(part.Text); len(part.Text) > maxSeed {
			return nil, badSeed("%s is %d bytes, at most %d", part.Name, len(part.Text), maxSeed)
		}
		if strings.ContainsRune(part.Text, 0) {
			return nil, badSeed("%s holds a NUL byte", part.Name)
		}
	}
	if total > maxSeed {
		return nil, badSeed("all parts together are %d bytes, at most %d", total, maxSeed)
	}
	if s.user == "" {
		s.user = "#cloud-config\n{}\n"
	}
	var err error
	if s.vendor, err = withLogin(s.vendor, vm.Login); err != nil {
		return nil, err
	}
	name := vm.Name
	if name == "" {
		name = string(id)
	}
	if s.meta, err = metaData(s, string(id), name); err != nil {
		return nil, err
	}
	if s.network != "" {
		var any map[string]any
		if err := yaml.Unmarshal([]byte(s.network), &any); err != nil {
			return nil, badSeed("network_config is not a YAML mapping: %v", err)
		}
	}
	return s, nil
}

// metaData completes meta-data. Cloud-init applies a seed once for each instance id, so the id follows
// what there is to apply: another specification that says the same to cloud-init is the same instance.
func metaData(s *seedPlan, id, name string) (string, error) {
	given := map[string]any{}
	if s.meta != "" {
		if err := yaml.Unmarshal([]byte(s.meta), &given); err != nil || given == nil {
			return "", badSeed("meta_data is not a mapping in JSON or YAML: %v", err)
		}
	}
	_, hasID := given["instance-id"]
	_, hasHost := given["local-hostname"]
	_, hasName := given["hostname"]
	if s.meta != "" && hasID && (hasHost || hasName) {
		return s.meta, nil
	}
	if !hasID {
		given["instance-id"] = id + "-" + tag(s.user+"\x00"+s.vendor+"\x00"+s.network)
	}
	if !hasHost && !hasName {
		given["local-hostname"] = nocloud.Hostname(name)
	}
	out, err := yaml.Marshal(given)
	if err != nil {
		return "", badSeed("meta_data: %v", err)
	}
	return string(out), nil
}

// withLogin adds an account to vendor-data, over which the user-data of the workload's author wins.
func withLogin(vendor string, login *agentv1.VMLogin) (string, error) {
	if login == nil {
		return vendor, nil
	}
	if login.User == "" || login.Password == "" && len(login.SshAuthorizedKeys) == 0 {
		return "", invalid("vm.login: wants a user, and a password or ssh_authorized_keys")
	}
	type account struct {
		Name   string   `yaml:"name"`
		Shell  string   `yaml:"shell"`
		Sudo   string   `yaml:"sudo"`
		Lock   bool     `yaml:"lock_passwd"`
		Passwd string   `yaml:"plain_text_passwd,omitempty"`
		Keys   []string `yaml:"ssh_authorized_keys,omitempty"`
	}
	doc := struct {
		Users  []any           `yaml:"users"`
		SSH    bool            `yaml:"ssh_pwauth,omitempty"`
		Expire map[string]bool `yaml:"chpasswd,omitempty"`
	}{Users: []any{"default", account{
		Name: login.User, Shell: "/bin/bash", Sudo: "ALL=(ALL) NOPASSWD:ALL", Lock: login.Password == "",
		Passwd: login.Password, Keys: login.SshAuthorizedKeys,
	}}}
	if login.Password != "" {
		doc.SSH, doc.Expire = true, map[string]bool{"expire": false}
	}
	body, err := yaml.Marshal(doc)
	if err != nil {
		return "", invalid("vm.login: %v", err)
	}
	text := "#cloud-config\n" + string(body)
	if vendor == "" {
		return text, nil
	}
	// Not a random boundary: the same specification makes the same seed.
	both, err := nocloud.Together("persys-"+tag(text+"\x00"+vendor), text, vendor)
	if err != nil {
		return "", badSeed("%v", err)
	}
	return both, nil
}

// files are the files of the seed, in a fixed order.
func (s *seedPlan) files(network string) []nocloud.File {
	out := []nocloud.File{{Name: "meta-data", Text: s.meta}, {Name: "network-config", Text: network}, {Name: "user-data", Text: s.user}}
	if s.vendor != "" {
		out = append(out, nocloud.File{Name: "vendor-data", Text: s.vendor})
	}
	return out
}
