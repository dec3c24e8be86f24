package compose_test

import (
	"maps"
	"testing"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/policy"
)

// A service gets a CPU weight in proportion to its CPU limit, whichever key of the Compose file sets the
// limit.
func TestCPULimitsOfServicesSetAWeight(t *testing.T) {
	b := newBench(t)
	spec := b.spec("weight", b.yaml(`
services:
  cpus: {image: IMAGE, command: [serve], cpus: 0.5}
  deploy: {image: IMAGE, command: [serve], deploy: {resources: {limits: {cpus: "0.5"}}}}
  quota: {image: IMAGE, command: [serve], cpu_quota: 50000}
  period: {image: IMAGE, command: [serve], cpu_quota: 10000, cpu_period: 20000}
  own: {image: IMAGE, command: [serve], cpu_quota: 50000, cpu_shares: 300}
  none: {image: IMAGE, command: [serve]}
`))
	b.ensure(spec)
	o := b.await(spec.ID, driver.Running)
	got := map[string]int64{}
	for _, id := range o.Parts {
		res, err := b.cli.ContainerInspect(b.ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got[res.Container.Config.Labels["com.docker.compose.service"]] = res.Container.HostConfig.CPUShares
	}
	want := map[string]int64{"cpus": 512, "deploy": 512, "quota": 512, "period": 512, "own": 300, "none": 0}
	if !maps.Equal(got, want) {
		t.Errorf("the CPU weights of the services are %v; want %v", got, want)
	}
}

// A service without a limit of processes gets the default of agents, or the lowest max_pids of the workload's policies if
// that is lower. The limit is part of the hash by which Compose detects a changed service, so the next call of Ensure
// must compute the same limit.
func TestProcessLimitsOfServices(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("pids-"+way, b.yaml(`
services:
  none: {image: IMAGE, command: [serve]}
  deploy: {image: IMAGE, command: [serve], deploy: {resources: {limits: {memory: 64m}}}}
  own: {image: IMAGE, command: [serve], pids_limit: 50}
  deployown: {image: IMAGE, command: [serve], deploy: {resources: {limits: {pids: 60}}}}
`))
		limits := func(most int64) (ids map[string]string) {
			b.Helper()
			spec.Rules = &driver.Rules{Policies: []driver.Rule{{Policy: &policy.Policy{Name: "small", Kinds: []string{"*"}, Images: []string{"*"}, Users: []string{"*"}, MaxPids: most}}}}
			b.ensure(spec)
			o := b.await(spec.ID, driver.Running)
			got, ids := map[string]int64{}, map[string]string{}
			for _, id := range o.Parts {
				res, err := b.cli.ContainerInspect(b.ctx, id, client.ContainerInspectOptions{})
				if err != nil {
					t.Fatal(err)
				}
				service := res.Container.Config.Labels["com.docker.compose.service"]
				ids[service] = id
				if n := res.Container.HostConfig.PidsLimit; n != nil {
					got[service] = *n
				}
			}
			unset := min(most, driver.DefaultPids)
			if want := map[string]int64{"none": unset, "deploy": unset, "own": 50, "deployown": 60}; !maps.Equal(got, want) {
				t.Errorf("under a policy with max_pids: %d the services have the process limits %v; want %v", most, got, want)
			}
			return ids
		}
		first := limits(100)
		if _, err := b.cli.ContainerStop(b.ctx, first["own"], client.ContainerStopOptions{Timeout: new(0)}); err != nil {
			t.Fatal(err)
		}
		if again := limits(100); !maps.Equal(again, first) { // one service is stopped, so Ensure calls Compose, which compares the hashes
			t.Errorf("Ensure of an unchanged stack created containers again: their ids are %v, before %v", again, first)
		}
	})
}
