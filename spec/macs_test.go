package spec

import (
	"encoding/base64"
	"slices"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
)

// TestDemandHasTheMACAddressesOfAGuest: the command for a virtual machine must contain its Ethernet addresses, both
// those in the specification and those that agents derive, so that the state machine can refuse duplicates.
func TestDemandHasTheMACAddressesOfAGuest(t *testing.T) {
	guest := func(nics ...*controlv1.NetworkConfig) *controlv1.ApplyWorkloadRequest {
		return &controlv1.ApplyWorkloadRequest{WorkloadId: "vm", Spec: &controlv1.WorkloadSpec{
			Type: TypeVM, Workload: &controlv1.WorkloadSpec_Vm{Vm: &controlv1.VMSpec{Vcpus: 1, MemoryMb: 512, Networks: nics}},
		}}
	}
	many := guest(&controlv1.NetworkConfig{Bridge: "lan"})
	many.Spec.Count = new(int32(2))
	hidden := guest()
	hidden.Spec.Metadata = map[string]string{MetadataVMSpec: base64.StdEncoding.EncodeToString([]byte(`{"vcpus":1,"memory_mb":512,"networks":[{"network":"lan","mac_address":"52:54:00:00:00:0B"}]}`))}
	const set = "52:54:00:00:00:0a"
	for _, c := range []struct {
		name, cluster string
		req           *controlv1.ApplyWorkloadRequest
		want          [][]string
	}{
		{"a network card with a configured Ethernet address", "c", guest(&controlv1.NetworkConfig{Bridge: "lan", MacAddress: "52-54-00-00-00-0A"}), [][]string{{set}}},
		{"an Ethernet address in the VM under the reserved metadata key", "c", hidden, [][]string{{"52:54:00:00:00:0b"}}},
		{"a network card without an address, for which agents derive one", "c", guest(&controlv1.NetworkConfig{Bridge: "lan"}), [][]string{{engine.GuestMAC("c", "vm", 0)}}},
		{"a first card with an address and a second card without", "c", guest(&controlv1.NetworkConfig{Bridge: "lan", MacAddress: set}, &controlv1.NetworkConfig{Bridge: "lan"}),
			[][]string{sorted(set, engine.GuestMAC("c", "vm", 1))}},
		{"a card without an address in an unknown cluster", "", guest(&controlv1.NetworkConfig{Bridge: "lan"}), [][]string{nil}},
		{"each virtual machine of a count has its own derived address", "c", many, [][]string{{engine.GuestMAC("c", "vm-0", 0)}, {engine.GuestMAC("c", "vm-1", 0)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := PrepareWith(c.req, fixedKey{}, Defaults{Cluster: c.cluster})
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range p.Command.GetPutWorkloads().GetWorkloads() {
				if got := w.GetDemand().GetMacAddresses(); !slices.Equal(got, c.want[i]) {
					t.Errorf("the demand of virtual machine %s has the Ethernet addresses %q, want %q", w.GetId(), got, c.want[i])
				}
			}
		})
	}
}

func sorted(list ...string) []string {
	slices.Sort(list)
	return list
}
