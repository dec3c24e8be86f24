package usage_test

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/usage"
)

func TestTable(t *testing.T) {
	at := time.Unix(1000, 0)
	sample := func(id, instance string, after, cpu time.Duration, disk int64) driver.Usage {
		return driver.Usage{ID: driver.ID(id), Instance: instance, At: at.Add(after), CPU: cpu, Disk: disk}
	}
	var table usage.Table
	table.Observe(driver.Container, []driver.Usage{sample("a", "1", 0, time.Second, 500), sample("b", "1", 0, time.Second, -1)})
	table.Observe(driver.VM, []driver.Usage{sample("v", "1", 0, 0, -1)})
	if r, _ := table.Get("a"); r.Millicores != -1 {
		t.Errorf("after one sample %v millicores, want none", r.Millicores)
	}
	_, seen := table.After(0)
	table.Observe(driver.Container, []driver.Usage{
		sample("a", "1", 10*time.Second, 6*time.Second, -1), // half a core
		sample("b", "2", 10*time.Second, 0, -1),             // another instance
	})
	if r, _ := table.Get("a"); r.Millicores != 500 || r.Disk != 500 {
		t.Errorf("%v millicores and %d bytes, want 500 and what was measured before", r.Millicores, r.Disk)
	}
	if r, _ := table.Get("b"); r.Millicores != -1 {
		t.Errorf("another instance has %v millicores, want none yet", r.Millicores)
	}
	fresh, seen := table.After(seen)
	if len(fresh) != 2 || fresh[0].ID != "a" || fresh[1].ID != "b" {
		t.Errorf("new since the first round: %v, want a and b", fresh)
	}
	if again, _ := table.After(seen); len(again) != 0 {
		t.Errorf("new since the last round: %v, want nothing", again)
	}
	table.Observe(driver.Container, []driver.Usage{sample("b", "2", 20*time.Second, time.Second, -1)})
	if _, ok := table.Get("a"); ok {
		t.Error("a has ended and is still there")
	}
	if _, ok := table.Get("v"); !ok {
		t.Error("v is of another kind and was forgotten")
	}
	table.Observe(driver.Container, []driver.Usage{sample("b", "2", 15*time.Second, 2*time.Second, -1)})
	if r, _ := table.Get("b"); r.Millicores != -1 {
		t.Errorf("a clock that was set back gives %v millicores, want none", r.Millicores)
	}
}
