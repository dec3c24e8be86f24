package usage_test

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/usage"
)

func TestTableComputesUsageFromSamples(t *testing.T) {
	at := time.Unix(1000, 0)
	sample := func(id, instance string, after, cpu time.Duration, disk int64) driver.Usage {
		return driver.Usage{ID: driver.ID(id), Instance: instance, At: at.Add(after), CPU: cpu, Disk: disk}
	}
	var table usage.Table
	table.Observe(driver.Container, []driver.Usage{sample("a", "1", 0, time.Second, 500), sample("b", "1", 0, time.Second, -1)})
	table.Observe(driver.VM, []driver.Usage{sample("v", "1", 0, 0, -1)})
	if r, _ := table.Get("a"); r.Millicores != -1 {
		t.Errorf("after one measurement the reading has %v millicores, want -1 for unknown", r.Millicores)
	}
	_, seen := table.After(0)
	table.Observe(driver.Container, []driver.Usage{
		sample("a", "1", 10*time.Second, 6*time.Second, -1), // CPU time grew by 5 s in 10 s: the workload used half a core
		sample("b", "2", 10*time.Second, 0, -1),             // a new instance of the workload, whose counter starts from 0
	})
	if r, _ := table.Get("a"); r.Millicores != 500 || r.Disk != 500 {
		t.Errorf("the reading has %v millicores and %d bytes of disk, want 500 millicores, and the disk use of the previous measurement", r.Millicores, r.Disk)
	}
	if r, _ := table.Get("b"); r.Millicores != -1 {
		t.Errorf("after one measurement of a new instance the reading has %v millicores, want -1 for unknown", r.Millicores)
	}
	fresh, seen := table.After(seen)
	if len(fresh) != 2 || fresh[0].ID != "a" || fresh[1].ID != "b" {
		t.Errorf("the readings that are newer than the first measurement are %v, want those of workloads a and b", fresh)
	}
	if again, _ := table.After(seen); len(again) != 0 {
		t.Errorf("the readings that are newer than the last measurement are %v, want none", again)
	}
	table.Observe(driver.Container, []driver.Usage{sample("b", "2", 20*time.Second, time.Second, -1)})
	if _, ok := table.Get("a"); ok {
		t.Error("workload \"a\" is missing in a newer measurement of its driver, but its reading was not dropped")
	}
	if _, ok := table.Get("v"); !ok {
		t.Error("a measurement of the container driver dropped the reading of \"v\", a workload of another driver")
	}
	table.Observe(driver.Container, []driver.Usage{sample("b", "2", 15*time.Second, 2*time.Second, -1)})
	if r, _ := table.Get("b"); r.Millicores != -1 {
		t.Errorf("after the clock was set back the reading has %v millicores, want -1 for unknown", r.Millicores)
	}
}
