package libvirt

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
)

// An orphan (a machine with our labels for which the agent has no order) is removed with its disk and its
// cloud-init seed if a user asks for it. Machines of another node, and machines with an order, are not removed.
func TestAnOrphanIsRemovedOnRequest(t *testing.T) {
	daemon := theDaemon(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, sibling := openDriver(t, daemon, "node-a"), openDriver(t, daemon, "node-b")
	for id, on := range map[string]*Driver{"orphan": d, "wanted": d, "theirs": sibling} {
		spec := order(id, "c1:1", tiny(daemon, "serve"))
		spec.NodeID = on.opt.NodeID
		ensured(t, ctx, on, spec)
	}
	files := func() int {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(images(daemon), `orphan[.\-]*`))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if files() < 2 {
		t.Fatalf("before the collection %d files of the machine exist; want its disk and its folder", files())
	}
	found, err := d.Garbage(ctx, driver.GarbageQuery{
		Wanted: func(id driver.ID) bool { return id == "wanted" }, Busy: func(driver.ID) bool { return false },
	})
	if err != nil || len(found) != 1 || found[0].Kind != driver.Orphan || found[0].Name != "orphan" || !strings.Contains(found[0].Reason, "(running)") {
		t.Fatalf("Garbage returned %+v, error %v; want the orphaned machine", found, err)
	}
	if err := d.Collect(ctx, found[0]); err != nil {
		t.Fatal(err)
	}
	if n := files(); n != 0 {
		t.Errorf("after Collect %d files of the orphaned machine are left", n)
	}
	out, err := daemon.Virsh(ctx, "list", "--all", "--name")
	if names := strings.Fields(out); err != nil || len(names) != 2 {
		t.Errorf("libvirt has the domains %q, %v; want the domains \"wanted\" and \"theirs\"", names, err)
	}
}
