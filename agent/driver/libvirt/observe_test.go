package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// listed returns the entry of List for the workload id.
func listed(ctx context.Context, d *Driver, id driver.ID) (driver.Observed, error) {
	all, err := d.List(ctx)
	if err != nil {
		return driver.Observed{}, err
	}
	i := slices.IndexFunc(all, func(o driver.Observed) bool { return o.ID == id })
	if i < 0 {
		return driver.Observed{State: driver.Absent}, nil
	}
	return all[i], nil
}

// chatty is a shelf (a fake hypervisor) whose guests have QEMU guest agents that give the answers which the
// test has set. Some guest agents never answer, and libvirt keeps the domains of those guests locked.
type chatty struct {
	*shelf
	says  []address
	deaf  map[string]bool // UUIDs of domains whose guest agents never answer and that libvirt keeps locked
	asked atomic.Int64    // number of calls to the guest agents that never answer, and of record writes for their guests

	mu            sync.Mutex
	waiting, most int // number of calls that wait for a locked domain: now, and the maximum so far
}

func (c *chatty) note(ctx context.Context, uuid, text string, live bool) error {
	if !c.deaf[uuid] {
		return c.shelf.note(ctx, uuid, text, live)
	}
	c.asked.Add(1)
	c.wait(1)
	defer c.wait(-1)
	time.Sleep(30 * time.Second)
	return driver.Errorf(driver.RuntimeError, "note", "cannot acquire state change lock")
}

func (c *chatty) wait(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting += n
	c.most = max(c.most, c.waiting)
}

func (c *chatty) addresses(ctx context.Context, uuid string, agent bool) ([]address, error) {
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !agent:
		return nil, nil
	case c.deaf[uuid]:
		c.asked.Add(1)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(agentWait):
			return nil, nil
		}
	}
	return c.says, nil
}

// newChatty returns a chatty, and a driver that uses it, with running domains that have neither disks nor
// networks.
func newChatty(t *testing.T, ids ...driver.ID) (*Driver, *chatty) {
	t.Helper()
	hv := &chatty{shelf: newShelf(), deaf: map[string]bool{}}
	d := driverOn(t, hv)
	for _, id := range ids {
		spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64})
		spec.ID = id
		if err := d.Ensure(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		hv.all[string(id)].live += "<!-- state='connected' -->"
	}
	return d, hv
}

// Schedulers and DNS use the addresses that a guest agent reports. So the driver accepts only valid
// addresses, and only a limited number.
func TestGuestAgentReportIsBounded(t *testing.T) {
	d, hv := newChatty(t, "web")
	ips := []string{"\xff", "10.0.0.5\n", "fe80::1", "127.0.0.1", "0.0.0.0", "10.0.0.7", "2001:db8::7"}
	for n := range 70_000 {
		ips = append(ips, fmt.Sprintf("10.1.%d.%d", n/256%256, n%256))
	}
	for n := range 2000 {
		hv.says = append(hv.says, address{name: fmt.Sprintf("interface-%d", n), mac: fmt.Sprint("mac-", n), ips: ips})
		ips = nil
	}
	o, err := listed(t.Context(), d, "web")
	if err != nil || len(o.Addresses) > mostAddresses || !slices.Equal(o.Addresses[:3], []string{"10.0.0.7", "2001:db8::7", "10.1.0.0"}) {
		t.Errorf("List returned %d addresses: %.200q, error %v; want at most mostAddresses valid ones", len(o.Addresses), o.Addresses, err)
	}
	for key, value := range o.Metadata {
		if len(value) > driver.MaxMetadata || !utf8.ValidString(value) {
			t.Errorf("the metadata %s has %d bytes, more than MaxMetadata", key, len(value))
		}
	}
}

// Some guest agents never answer, or libvirt keeps the domains locked so that the guests' ends cannot be
// recorded. Such a guest delays one List by seconds, but not the following calls. The other guests get their
// addresses in the same List, and libvirt can still serve other calls.
func TestGuestsThatNeverAnswer(t *testing.T) {
	for _, ended := range []bool{false, true} {
		neverAnswer(t, ended)
	}
}

func neverAnswer(t *testing.T, ended bool) {
	synctest.Test(t, func(t *testing.T) {
		ids := []driver.ID{"a", "b", "c", "web", "x", "y"}
		d, hv := newChatty(t, ids...)
		hv.says = []address{{name: "eth0", mac: "m", ips: []string{"10.0.0.7"}}}
		for _, id := range ids {
			if uuid := hv.all[string(id)].uuid; id != "web" {
				hv.deaf[uuid] = true
				if ended {
					if err := hv.shutdown(t.Context(), uuid); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		for n := range 3 {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			o, err := listed(ctx, d, "web")
			cancel()
			most := agentsWait
			switch {
			case n > 0:
				most = 0
			case ended:
				most = noteWait
			}
			if took := time.Since(began); err != nil || !slices.Equal(o.Addresses, []string{"10.0.0.7"}) || took > most {
				t.Errorf("call %d of List (the guests have ended: %t) took %s and returned the addresses %v, error %v; want 10.0.0.7 within %s", n, ended, took, o.Addresses, err, most)
			}
		}
		time.Sleep(restFor)
		_, err := d.List(t.Context())
		time.Sleep(3 * restFor) // sleep until libvirt's waits for the locked domains have ended
		hv.mu.Lock()
		defer hv.mu.Unlock()
		switch {
		case err != nil, !ended && hv.asked.Load() != 2*int64(len(hv.deaf)):
			t.Errorf("the guests have ended: %t (error %v): for %d guests without an answer the driver made %d calls; want two for each guest, the second after %s", ended, err, len(hv.deaf), hv.asked.Load(), restFor)
		case hv.most > notesAtOnce, ended && hv.most == 0:
			t.Errorf("%d calls of the driver waited for locked domains at the same time, want at most %d", hv.most, notesAtOnce)
		}
	})
}

// A List that reaches its time limit returns an error, not a list in which guests lack their addresses.
func TestAListOverItsTimeLimitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, hv := newChatty(t, "deaf", "web")
		hv.deaf[hv.all["deaf"].uuid] = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if all, err := d.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("List returned %+v, error %v; want %v", all, err, context.DeadlineExceeded)
		}
	})
}

// While a call waits for a domain that libvirt keeps locked, the driver can write the records of other domains.
func TestRecordOfALockedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, hv := newChatty(t, "deaf", "web")
		hv.deaf[hv.all["deaf"].uuid] = true
		if err := hv.shutdown(t.Context(), hv.all["web"].uuid); err != nil {
			t.Fatal(err)
		}
		in, _, err := d.find(t.Context(), "deaf")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { _ = d.change(t.Context(), in, func(*record) {}) }()
		synctest.Wait()
		other := *in
		if err := d.change(ctx, &other, func(*record) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("change of the record of a locked domain returned %v; want an error when its context ends", err)
		}
		d.rest("agent " + in.uuid)
		began := time.Now()
		if o, err := listed(t.Context(), d, "web"); err != nil || o.FinishedAt.IsZero() || time.Since(began) != 0 {
			t.Errorf("after %s List returned %+v, error %v; want the end of guest \"web\" recorded", time.Since(began), o, err)
		}
		time.Sleep(restFor) // sleep until the call that waits for the locked domain has ended
	})
}

// The guest may stop after List has read its domain and before List corrects the domain's record.
// In this case List must not record a new start.
func TestListDuringStop(t *testing.T) {
	d, hv := newChatty(t, "web")
	in, _, err := d.find(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Halt(t.Context(), "web", time.Second); err != nil {
		t.Fatal(err)
	}
	in.config.Started = time.Time{}
	if err := d.mark(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if r := readRecord(hv.all["web"].config); r.Finished.IsZero() {
		t.Errorf("after List and the stop the record is %+v; want the end that the stop recorded", r)
	}
}

// libvirt keeps a domain locked, which delays the write that records the end of its guest. If the guest is
// started again before that write is carried out, the write must not change the record of the new run.
func TestDelayedRecordWrite(t *testing.T) {
	d, hv := newChatty(t, "web")
	look := func() *instance {
		t.Helper()
		in, _, err := d.find(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	begin := func() time.Time {
		t.Helper()
		began := look().config.Started.Add(time.Hour)
		if err := d.change(t.Context(), look(), func(r *record) { r.Started, r.Finished, r.End = began, time.Time{}, "" }); err != nil {
			t.Fatal(err)
		}
		return began
	}
	if err := d.change(t.Context(), look(), func(r *record) { r.Finished = r.Started }); err != nil {
		t.Fatal(err)
	}
	ended, began := look(), begin()
	if err := d.mark(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	if r := look().config; !r.Started.Equal(began) {
		t.Errorf("the record has the start time %v, want %v, the time of the new run", r.Started, began)
	}
	if err := hv.shutdown(t.Context(), look().uuid); err != nil {
		t.Fatal(err)
	}
	off := look()
	began = begin() // the driver records a start before it starts the guest
	if err := d.mark(t.Context(), off); err != nil {
		t.Fatal(err)
	}
	if r := look().config; !r.Started.Equal(began) || !r.Finished.IsZero() {
		t.Errorf("the delayed write changed the record to %+v; want no end of the run that began at %v", r, began)
	}
}

// If QEMU pauses a guest because the node's disk is full, the message of the workload gives that reason.
func TestGuestOnFullDisk(t *testing.T) {
	d, hv := newChatty(t, "web")
	hv.all["web"].state, hv.all["web"].reason = statePaused, pausedByDisk
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Pending || !strings.Contains(o.Message, "space") || !strings.Contains(o.Message, "virsh resume web") {
		t.Errorf("the guest is %s with message %q, %v; want a message that names the disk and says how to resume", o.State, o.Message, err)
	}
}

// A guest that suspended itself has not failed, and its message says how to wake it.
func TestASuspendedGuestHasNotFailed(t *testing.T) {
	d, hv := newChatty(t, "web")
	hv.all["web"].state = stateSuspended
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Running || !strings.Contains(o.Message, "dompmwakeup web") {
		t.Errorf("the guest is %s with message %q, %v; want Running and a message that it is suspended", o.State, o.Message, err)
	}
}

// late is a shelf (a fake hypervisor) whose guests start after the start call has timed out.
type late struct{ *shelf }

func (l late) start(ctx context.Context, uuid string) error {
	return errors.Join(l.shelf.start(ctx, uuid), driver.Errorf(driver.RuntimeUnhealthy, "start", "libvirt does not answer"))
}

// If a guest starts after the start call timed out, the driver still records the start, so that it later
// notices the guest's end and records it as an exit.
func TestStartAfterTimeout(t *testing.T) {
	hv := late{newShelf()}
	d := driverOn(t, hv)
	if err := d.Ensure(t.Context(), specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64})); err == nil {
		t.Fatal("Ensure succeeded although the start call timed out")
	}
	if _, err := d.List(t.Context()); err != nil { // List records the start that the driver missed
		t.Fatal(err)
	}
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Running || o.StartedAt.IsZero() {
		t.Errorf("the start call timed out, but the guest runs: List returned %+v, error %v; want a start time", o, err)
	}
	hv.all["web"].active, hv.all["web"].state, hv.all["web"].reason, hv.all["web"].live = false, stateShutoff, 3, ""
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Failed {
		t.Errorf("after the crash of the guest List returned %+v, error %v; want Failed", o, err)
	}
}

// Somebody undefines a domain and defines it again while its guest runs. The driver treats the guest as the
// same instance: it notices the guest's end and records it as an exit.
func TestARedefinedGuestIsTheSameInstance(t *testing.T) {
	d, hv := newChatty(t, "web")
	before, err := listed(t.Context(), d, "web")
	if err != nil {
		t.Fatal(err)
	}
	web := hv.all["web"]
	web.persistent = false // somebody undefined the domain while it runs
	if err := d.Ensure(t.Context(), specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64})); err != nil || !web.persistent {
		t.Fatalf("Ensure returned %v; the domain is defined again: %v", err, web.persistent)
	}
	web.active, web.state, web.reason, web.live = false, stateShutoff, 3, ""
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Failed || o.RuntimeID != before.RuntimeID || !o.StartedAt.Equal(before.StartedAt) {
		t.Errorf("the redefined guest crashed: List returned %+v, error %v; want the instance %+v with state Failed", o, err, before)
	}
}

// wired is a shelf (a fake hypervisor) whose guests need a network. The network is inactive until the driver
// starts it by looking it up.
type wired struct {
	*shelf
	up bool
}

func (w *wired) network(context.Context, string) (string, error) {
	w.up = true
	return "<network><name>default</name></network>", nil
}

func (w *wired) start(ctx context.Context, uuid string) error {
	if !w.up {
		return driver.Errorf(driver.RuntimeError, "start", "network 'default' is not active")
	}
	return w.shelf.start(ctx, uuid)
}

func newWired(t *testing.T) (*Driver, *wired) {
	t.Helper()
	hv := &wired{shelf: newShelf()}
	return driverOn(t, hv), hv
}

// After a reboot of the node the network of an existing machine may be inactive. Ensure starts it.
func TestEnsureStartsAnInactiveNetwork(t *testing.T) {
	d, hv := newWired(t)
	spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, Networks: []*agentv1.NetworkConfig{{Network: "default"}}})
	for range 2 {
		if err := d.Ensure(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if err := d.Halt(t.Context(), spec.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		hv.up = false
	}
}

// The cloud-init instance ids of earlier versions did not depend on static addresses. A machine keeps such an
// id until its address changes. A new id without a new address would make cloud-init run again; a new address
// without a new id would not reach the guest.
func TestInstanceOfAnEarlierVersion(t *testing.T) {
	instance := regexp.MustCompile(`instance-id: web-\w+`)
	for _, to := range []string{"10.0.0.6", ""} {
		d, hv := newWired(t)
		former := ""
		for i, c := range []struct {
			ip              string
			addressed, same bool
		}{{"10.0.0.5", true, false}, {"10.0.0.5", false, false}, {"10.0.0.5", false, true}, {to, true, false}, {to, true, true}} {
			if i == 1 { // define the domain as an earlier version would have done
				hv.all["web"].config = strings.Replace(hv.all["web"].config, "&#34;addressed&#34;:true", "&#34;addressed&#34;:false", 1)
			}
			spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, CloudInit: "#cloud-config\n", Networks: []*agentv1.NetworkConfig{{IpAddress: c.ip}}})
			spec.Content = fmt.Sprint("c1:", i)
			if err := d.Ensure(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			s := readRecord(hv.all["web"].config).Seed
			iso, err := os.ReadFile(s.Path)
			id := string(instance.Find(iso))
			if err != nil || id == "" || s.Addressed != c.addressed || (id == former) != c.same {
				t.Errorf("step %d: at address %q the instance id is %q (before: %q), depends on the address: %v, %v; want %+v", i, c.ip, id, former, s.Addressed, err, c)
			}
			former = id
		}
	}
}
