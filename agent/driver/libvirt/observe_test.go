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

// listed returns one workload from List.
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

// chatty is a shelf whose guests have agents with scripted answers. Some agents never answer, and libvirt keeps
// their domains locked.
type chatty struct {
	*shelf
	says  []address
	deaf  map[string]bool // by UUID
	asked atomic.Int64    // number of calls to deaf agents, and of record writes for them

	mu            sync.Mutex
	waiting, most int // calls that wait for a locked machine
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

// newChatty returns a chatty with running domains without disks and networks.
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

// A guest agent's report reaches schedulers and DNS, so only valid addresses and a bounded number pass.
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
		t.Errorf("%d addresses, %.200q, %v", len(o.Addresses), o.Addresses, err)
	}
	for key, value := range o.Metadata {
		if len(value) > driver.MaxMetadata || !utf8.ValidString(value) {
			t.Errorf("%s has %d bytes", key, len(value))
		}
	}
}

// Guests whose agents never answer, or whose domains libvirt keeps locked so that their ends cannot be recorded,
// delay one List by seconds, and not the next ones. The other guests get their addresses meanwhile, and libvirt
// has calls left for everything else.
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
				t.Errorf("look %d, ended %v: after %s: %v, %v; want 10.0.0.7 within %s", n, ended, took, o.Addresses, err, most)
			}
		}
		time.Sleep(restFor)
		_, err := d.List(t.Context())
		time.Sleep(3 * restFor) // libvirt's waits have ended
		hv.mu.Lock()
		defer hv.mu.Unlock()
		switch {
		case err != nil, !ended && hv.asked.Load() != 2*int64(len(hv.deaf)):
			t.Errorf("ended %v: %v; %d were asked %d times, want once and again after %s", ended, err, len(hv.deaf), hv.asked.Load(), restFor)
		case hv.most > notesAtOnce, ended && hv.most == 0:
			t.Errorf("%d calls waited for locked machines at a time, want %d at most", hv.most, notesAtOnce)
		}
	})
}

// A List that ran out of time fails, and does not report guests without addresses.
func TestListTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, hv := newChatty(t, "deaf", "web")
		hv.deaf[hv.all["deaf"].uuid] = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if all, err := d.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v, %v; want %v", all, err, context.DeadlineExceeded)
		}
	})
}

// While a call waits for a locked domain, records of other domains are written.
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
			t.Errorf("%v; want that it is given up with its context", err)
		}
		d.rest("agent " + in.uuid)
		began := time.Now()
		if o, err := listed(t.Context(), d, "web"); err != nil || o.FinishedAt.IsZero() || time.Since(began) != 0 {
			t.Errorf("after %s: %+v, %v; want the end of web", time.Since(began), o, err)
		}
		time.Sleep(restFor) // the first call has its answer
	})
}

// A List may read a domain before the guest is stopped and continue afterwards. It must not record the stopped
// guest as started.
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
		t.Errorf("%+v; want the end of a guest that was stopped", r)
	}
}

// A record write that was delayed by a locked domain applies only to the observed run, not to a run that began
// since.
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
		t.Errorf("the start is %v, want the one that was written down, %v", r.Started, began)
	}
	if err := hv.shutdown(t.Context(), look().uuid); err != nil {
		t.Fatal(err)
	}
	off := look()
	began = begin() // a start records itself first
	if err := d.mark(t.Context(), off); err != nil {
		t.Fatal(err)
	}
	if r := look().config; !r.Started.Equal(began) || !r.Finished.IsZero() {
		t.Errorf("%+v; want no end of what began at %v", r, began)
	}
}

// A guest that QEMU paused because the node's disk is full reports that reason.
func TestGuestOnFullDisk(t *testing.T) {
	d, hv := newChatty(t, "web")
	hv.all["web"].state, hv.all["web"].reason = statePaused, pausedByDisk
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Pending || !strings.Contains(o.Message, "space") || !strings.Contains(o.Message, "virsh resume web") {
		t.Errorf("%s %q, %v; want a word of the disk, and how it goes on", o.State, o.Message, err)
	}
}

// A guest that suspended itself is not failed, and its message says how to wake it.
func TestSuspendedGuest(t *testing.T) {
	d, hv := newChatty(t, "web")
	hv.all["web"].state = stateSuspended
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Running || !strings.Contains(o.Message, "dompmwakeup web") {
		t.Errorf("%s %q, %v; want that it runs, and sleeps", o.State, o.Message, err)
	}
}

// late is a shelf whose guests start after the call has timed out.
type late struct{ *shelf }

func (l late) start(ctx context.Context, uuid string) error {
	return errors.Join(l.shelf.start(ctx, uuid), driver.Errorf(driver.RuntimeUnhealthy, "start", "libvirt does not answer"))
}

// A guest that started after the call timed out has a recorded start, so that its end is noticed and counted.
func TestStartAfterTimeout(t *testing.T) {
	hv := late{newShelf()}
	d := driverOn(t, hv)
	if err := d.Ensure(t.Context(), specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64})); err == nil {
		t.Fatal("a start that was given up succeeded")
	}
	if _, err := d.List(t.Context()); err != nil { // List records the start
		t.Fatal(err)
	}
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Running || o.StartedAt.IsZero() {
		t.Errorf("%+v, %v; want it started", o, err)
	}
	hv.all["web"].active, hv.all["web"].state, hv.all["web"].reason, hv.all["web"].live = false, stateShutoff, 3, ""
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Failed {
		t.Errorf("%+v, %v; want that it crashed", o, err)
	}
}

// A guest that was undefined and defined again while it ran is the same: its end is noticed and counted.
func TestRedefinedGuest(t *testing.T) {
	d, hv := newChatty(t, "web")
	before, err := listed(t.Context(), d, "web")
	if err != nil {
		t.Fatal(err)
	}
	web := hv.all["web"]
	web.persistent = false // somebody undefined it
	if err := d.Ensure(t.Context(), specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64})); err != nil || !web.persistent {
		t.Fatalf("%v; defined again: %v", err, web.persistent)
	}
	web.active, web.state, web.reason, web.live = false, stateShutoff, 3, ""
	if o, err := listed(t.Context(), d, "web"); err != nil || o.State != driver.Failed || o.RuntimeID != before.RuntimeID || !o.StartedAt.Equal(before.StartedAt) {
		t.Errorf("%+v, %v; want that it crashed, and was %+v", o, err, before)
	}
}

// wired is a shelf whose guests need a network that is inactive until it is looked up.
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

// After a reboot the network of an existing machine may be inactive.
func TestInactiveNetwork(t *testing.T) {
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

// Instance ids of earlier versions did not depend on static addresses. A machine keeps such an id until its
// address changes: otherwise cloud-init would run again, or miss the change.
func TestInstanceOfAnEarlierVersion(t *testing.T) {
	instance := regexp.MustCompile(`instance-id: web-\w+`)
	for _, to := range []string{"10.0.0.6", ""} {
		d, hv := newWired(t)
		former := ""
		for i, c := range []struct {
			ip              string
			addressed, same bool
		}{{"10.0.0.5", true, false}, {"10.0.0.5", false, false}, {"10.0.0.5", false, true}, {to, true, false}, {to, true, true}} {
			if i == 1 { // as if an earlier version had defined it
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
				t.Errorf("%d: at %q it is %q (was %q), following the address: %v, %v; want %+v", i, c.ip, id, former, s.Addressed, err, c)
			}
			former = id
		}
	}
}
