package compose_test

import (
	"maps"
	"testing"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
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
