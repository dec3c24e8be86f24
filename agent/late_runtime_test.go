package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
)

// An engine is installed while the agent runs. Without a restart, the agent registers the new kind of workload
// with the schedulers and carries out orders on the engine.
func TestARuntimeInstalledLaterIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		vms, err := sim.NewEngine(sim.Options{Kind: driver.VM})
		if err != nil {
			t.Fatal(err)
		}
		s := leader()
		here := make(chan struct{}, 1)
		r := newRig(t, under(s), func(c *Config) {
			c.NotOffered = map[driver.Kind]string{driver.VM: "no libvirt"}
			c.Late = func(b Binding) ([]driver.Driver, error) {
				select {
				case <-here:
					return []driver.Driver{vms.Driver(driver.Identity{ClusterID: b.ClusterID, NodeID: b.NodeID, Owns: b.Owns})}, nil
				default:
					return nil, nil
				}
			}
		}).start()
		offered := func() ([]string, string) {
			t.Helper()
			health, err := r.api.HealthCheck(t.Context(), &agentv1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.registers[len(s.registers)-1].Capabilities.SupportedWorkloadTypes, health.RuntimeStatus["vm"]
		}
		time.Sleep(2 * time.Minute)
		if types, word := offered(); slices.Contains(types, "vm") || word != "not offered: no libvirt" {
			t.Errorf("before libvirt is installed the node offers %v with reason %q; want no virtual machines", types, word)
		}
		here <- struct{}{}
		time.Sleep(2 * time.Minute)
		if types, word := offered(); !slices.Contains(types, "vm") || word != "healthy" {
			t.Errorf("after libvirt was installed the node offers %v with reason %q; want virtual machines", types, word)
		}
		r.apply("builder", "", by(1), at(2), func(q *agentv1.ApplyWorkloadRequest) {
			q.Type = agentv1.WorkloadType_WORKLOAD_TYPE_VM
			q.Spec = &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{Vcpus: 1, MemoryMb: 64}}}
		})
		r.reaches("builder", running)
	})
}
