package libvirt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/nocloud"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"go.yaml.in/yaml/v3"
)

// maxSeed is the maximum size in bytes of each cloud-init document and of all of them together
// (contract/semantics.md, section 12).
const maxSeed = 256 << 10

// seedPlan is the NoCloud seed (cloud-init's input) of a plan, without the parts that depend on the machine's
// networks.
type seedPlan struct {
	user, meta, network, vendor string
	// These documents replace meta, the meta-data of the seed, in special cases: formerMeta has the instance
	// id that earlier versions of the agent computed, without the static addresses; otherMeta has an instance
	// id that differs from both.
	formerMeta, otherMeta string
	former, other         bool // former or other is true if meta was replaced by formerMeta or otherMeta
}

func badSeed(format string, args ...any) error {
	return driver.Errorf(driver.CloudInitInvalid, "ensure", "cloud-init-invalid: "+format, args...)
}

// planSeed builds the seed (the input of cloud-init) of a specification. It returns nil if the specification
// has no cloud-init data and no disk made from an image: such a guest has no cloud-init that waits for a seed.
func planSeed(id driver.ID, vm *agentv1.VMSpec) (*seedPlan, error) {
	c := vm.GetCloudInitConfig()
	static := ""
	for i, n := range vm.Networks {
		if n.IpAddress != "" {
			static += fmt.Sprintf("\x00%d %s", i, n.IpAddress)
		}
	}
	if vm.CloudInit == "" && c.GetUserData() == "" && c.GetMetaData() == "" && c.GetNetworkConfig() == "" &&
		c.GetVendorData() == "" && vm.Login == nil && vm.OsImage == "" && static == "" {
		return nil, nil
	}
	// the field user_data takes precedence over the field cloud_init (contract/wire-agent.md).
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
		return nil, badSeed("all parts together have %d bytes, more than %d", total, maxSeed)
	}
	if s.user == "" {
		s.user = "#cloud-config\n{}\n"
	}
	var err error
	if login := vm.Login; login != nil {
		if s.vendor, err = nocloud.WithAccount(s.vendor, login.User, login.Password, login.SshAuthorizedKeys); err != nil {
			return nil, invalid("vm.login: %v", err)
		}
	}
	name := vm.Name
	if name == "" {
		name = string(id)
	}
	if s.network != "" {
		static = "" // network_config of the specification configures all interfaces, also those with a static address
	}
	given := s.meta
	for _, m := range []struct {
		text      *string
		addresses string
	}{{&s.meta, static}, {&s.formerMeta, ""}, {&s.otherMeta, "\x00"}} {
		// The cloud-init instance id is derived from the cloud-init content, so an update with the same content
		// does not make cloud-init run again.
		instance := string(id) + "-" + tag(s.user+"\x00"+s.vendor+"\x00"+s.network+m.addresses)
		if *m.text, err = nocloud.MetaData(given, instance, name); err != nil {
			return nil, badSeed("meta_data is %w", err)
		}
	}
	if s.network != "" {
		var any map[string]any
		if err := yaml.Unmarshal([]byte(s.network), &any); err != nil {
			return nil, badSeed("network_config is not a YAML mapping: %v", err)
		}
	}
	return s, nil
}

// follow chooses the cloud-init instance id in the new seed of an existing domain. was is the record of the
// domain's present definition, and static are the static addresses of the new one. Cloud-init applies a seed
// only once for each instance id.
func (s *seedPlan) follow(was *record, static []string) {
	switch {
	case was.Seed != nil && was.Seed.Other && s.meta == s.formerMeta && s.network == "":
		s.meta, s.other = s.otherMeta, true
	case was.Seed == nil || was.Seed.Addressed:
	case slices.Equal(was.Static, static):
		// The existing domain has an instance id of an earlier version, and its addresses did not
		// change. Keep that id, so that the upgrade of the agent does not make cloud-init run again.
		s.meta, s.former = s.formerMeta, true
	case s.meta == s.formerMeta && s.network == "":
		s.meta, s.other = s.otherMeta, true
	}
}

// files returns the files of the seed (the input of cloud-init) in a fixed order.
func (s *seedPlan) files(network string) []nocloud.File {
	out := []nocloud.File{{Name: "meta-data", Text: s.meta}, {Name: "network-config", Text: network}, {Name: "user-data", Text: s.user}}
	if s.vendor != "" {
		out = append(out, nocloud.File{Name: "vendor-data", Text: s.vendor})
	}
	return out
}
