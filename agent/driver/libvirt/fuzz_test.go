package libvirt

import (
	"testing"

	"go.yaml.in/yaml/v3"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// FuzzSeed checks that every cloud-init text is either refused, or makes a seed (the input of cloud-init) of
// bounded size, whose meta-data has an instance id.
func FuzzSeed(f *testing.F) {
	f.Add("web", "#cloud-config\nusers: [a]\n", "instance-id: i\nlocal-hostname: h\n", "version: 2\n", "", "10.0.0.2/24")
	f.Add("Ü", "I2Nsb3VkLWNvbmZpZwo=", "{}", "[]", "#cloud-config\nusers: 1\n", "")
	f.Add("", "", "a: &a [*a]\n", "x", "\x00", "x")
	f.Add("w", "#!/bin/sh", "1", "null", "Content-Type: multipart/mixed", "::1/64")
	f.Fuzz(func(t *testing.T, name, user, meta, network, vendor, address string) {
		vm := &agentv1.VMSpec{
			Name: name, Login: &agentv1.VMLogin{}, Networks: []*agentv1.NetworkConfig{{IpAddress: address}},
			CloudInitConfig: &agentv1.CloudInitConfig{UserData: user, MetaData: meta, NetworkConfig: network, VendorData: vendor},
		}
		s, err := planSeed("web", vm)
		if err != nil {
			return
		}
		var has map[string]any
		if err := yaml.Unmarshal([]byte(s.meta), &has); err != nil || has["instance-id"] == nil {
			t.Fatalf("the meta-data %q cannot be parsed or has no instance id: %v", s.meta, err)
		}
		if len(s.user)+len(s.vendor)+len(s.meta)+len(s.network) > 4*maxSeed {
			t.Fatal("the seed is larger than its limit")
		}
	})
}

// FuzzRecord checks that the driver can read any record in a domain's metadata, because every user of virsh may
// edit the metadata.
func FuzzRecord(f *testing.F) {
	f.Add(`<domain><metadata>` + record{Labels: map[string]string{"a": "b"}}.element() + `</metadata></domain>`)
	f.Add(`<domain><metadata><workload xmlns="` + namespace + `">{"labels":null}</workload></metadata></domain>`)
	f.Add(`<domain>`)
	f.Fuzz(func(t *testing.T, text string) {
		if r := readRecord(text); r != nil {
			if again := readRecord(`<domain><metadata>` + r.element() + `</metadata></domain>`); again == nil {
				t.Fatalf("a written record cannot be read again: %q", text)
			}
		}
	})
}
