package libvirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
	"github.com/persys/compute/agent/driver/libvirt/libvirttest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

func order(id, content string, vm *agentv1.VMSpec) driver.Spec {
	return driver.Spec{ID: driver.ID(id), Revision: content, Content: content, ClusterID: testCluster, NodeID: "node-a", Running: true, Body: body(vm)}
}

func ensured(t *testing.T, ctx context.Context, d *Driver, spec driver.Spec) driver.Observed {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := d.Remove(ctx, spec.ID); err != nil {
			t.Error(err)
		}
	})
	if err := d.Ensure(ctx, spec); err != nil {
		t.Fatal(err)
	}
	o, err := listed(ctx, d, spec.ID)
	if err != nil || o.State != driver.Running {
		t.Fatalf("after Ensure List returned the guest as %+v, error %v; want Running", o, err)
	}
	return o
}

// While libvirt's daemon is down, every call of the driver fails at once. The guest keeps running, and List
// finds it after the restart.
func TestCallsFailAtOnceWithoutADaemon(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 2*time.Minute)
	spec := order("down", "c1:1", tiny(daemon, "serve"))
	before := ensured(t, ctx, d, spec)
	events, err := d.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Down(ctx); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]func() error{
		"List":   func() error { _, err := d.List(ctx); return err },
		"Ensure": func() error { return d.Ensure(ctx, spec) },
		"Halt":   func() error { return d.Halt(ctx, spec.ID, 0) },
		"Remove": func() error { return d.Remove(ctx, spec.ID) },
		"Probe":  func() error { _, err := d.Probe(ctx); return err },
	} {
		start := time.Now()
		if err := call(); driver.ClassOf(err) != driver.RuntimeUnhealthy {
			t.Errorf("%s without a daemon returned %v, want class %s", what, err, driver.RuntimeUnhealthy)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s without a daemon returned only after %s", what, took)
		}
	}
	if err := daemon.Up(ctx); err != nil {
		t.Fatal(err)
	}
	for told := false; !told; {
		select {
		case id := <-events:
			told = id == "" // the empty hint, which means that any workload may have changed
		case <-time.After(20 * time.Second):
			t.Fatal("no event after the daemon returned")
		}
	}
	after, err := listed(ctx, d, spec.ID)
	if err != nil || after.RuntimeID != before.RuntimeID || !after.StartedAt.Equal(before.StartedAt) || after.State != driver.Running {
		t.Errorf("the restart of the daemon changed the guest from %+v to %+v, error %v", before, after, err)
	}
}

// The daemon is killed at different moments while the driver creates a machine, and then while it replaces
// one. In each case the next Ensure completes the interrupted work, and exactly one machine exists.
func TestDaemonDiesInTheMiddle(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 8*time.Minute)
	ages := []time.Duration{600 * time.Millisecond, 150 * time.Millisecond, 30 * time.Millisecond}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, age := range ages {
			if err := d.Remove(ctx, driver.ID("middle-"+age.String())); err != nil {
				t.Error(err)
			}
		}
	})
	for n := 1; n <= 2; n++ { // the first round creates the domain, the second replaces it
		ensure := func(age time.Duration) error {
			return d.Ensure(ctx, order("middle-"+age.String(), fmt.Sprintf("c1:%d", n), tiny(daemon, "serve")))
		}
		var first errgroup.Group
		for i, age := range ages {
			first.Go(func() error {
				err := ensure(age)
				t.Logf("killed after %s: %v", age, err)
				return nil
			})
			next := time.Duration(0)
			if i+1 < len(ages) {
				next = ages[i+1]
			}
			time.Sleep(age - next) // the delay before the kill is a parameter of the test
		}
		if err := daemon.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		_ = first.Wait()
		// A restarted daemon locks each domain while it reconnects to the domain's QEMU process. Calls for the
		// domain wait up to 30 s for that lock.
		testbed.Within(t, 70*time.Second, "the next Ensure of each machine succeeds", func() error {
			var all errgroup.Group
			for _, age := range ages {
				all.Go(func() error { return ensure(age) })
			}
			return all.Wait()
		})
		for _, age := range ages {
			o, err := listed(ctx, d, driver.ID("middle-"+age.String()))
			if want := fmt.Sprintf("c1:%d", n); err != nil || o.State != driver.Running || o.Content != want {
				t.Errorf("after the kill of the daemon and another Ensure List returned %+v, error %v; want content %q in state Running", o, err, want)
			}
		}
	}
	out, err := daemon.Virsh(ctx, "list", "--all", "--name")
	for _, age := range ages {
		if id := "middle-" + age.String(); err != nil || strings.Count(out, id) != 1 {
			t.Errorf("libvirt has the domains %q, error %v; want exactly one named %s", out, err, id)
		}
	}
}

// If libvirt 9.0 is killed after it recorded a domain's start and before QEMU's process exists, it keeps the
// domain locked after every restart. The error of Ensure names a repair command. The test runs this command and
// checks that it works.
func TestAnInterruptedStartNamesItsRepair(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 3*time.Minute)
	spec := order("unborn", "c1:1", tiny(daemon, "serve"))
	ensured(t, ctx, d, spec)
	if err := daemon.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if err := unborn(ctx, daemon, "unborn"); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Up(ctx); err != nil {
		t.Fatal(err)
	}
	err := d.Ensure(ctx, spec)
	if err == nil || driver.ClassOf(err).Cause() == driver.Final || !strings.Contains(err.Error(), "remove the domain's file from /run/libvirt/qemu") {
		t.Errorf("Ensure of a machine that libvirt keeps locked returned %v, want a transient error that names the repair", err)
	}
	if err := daemon.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	ensured(t, ctx, d, spec)
}

// unborn changes the daemon's status file of a running domain to the state in which an interrupted start
// leaves it.
func unborn(ctx context.Context, daemon *libvirttest.Daemon, name string) error {
	note, err := os.ReadFile(daemon.Notes(name))
	if err != nil {
		return err
	}
	state := regexp.MustCompile(`<domstatus state='running' reason='\w+' pid='(\d+)'>`)
	found := state.FindSubmatch(note)
	if found == nil {
		return fmt.Errorf("libvirt's status file of domain %q does not contain the state running: %s", name, note)
	}
	if _, err := daemon.Inside(ctx, "kill", "-KILL", string(found[1])); err != nil {
		return err
	}
	note = state.ReplaceAll(note, []byte(`<domstatus state='paused' reason='starting up' pid='0'>`))
	const caps = "</qemuCaps>"
	note = bytes.Replace(note, []byte(caps), []byte(caps+`<job type='none' async='start' flags='0x0' asyncStarted='1'/>`), 1)
	return os.WriteFile(daemon.Notes(name), note, 0o600)
}

// A machine that was undefined while it runs is still listed. It can be defined again and removed while it
// runs.
func TestAnUndefinedMachineIsStillListed(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 2*time.Minute)
	spec := order("undefined", "c1:1", tiny(daemon, "serve"))
	before := ensured(t, ctx, d, spec)
	for range 2 {
		if _, err := daemon.Virsh(ctx, "undefine", "undefined"); err != nil {
			t.Fatal(err)
		}
		if o, err := listed(ctx, d, spec.ID); err != nil || o.State != driver.Running || o.RuntimeID != before.RuntimeID || !o.StartedAt.Equal(before.StartedAt) {
			t.Errorf("List of an undefined machine returned %+v, error %v; want %+v", o, err, before)
		}
		if err := d.Ensure(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := daemon.Virsh(ctx, "dominfo", "undefined"); err != nil || !regexp.MustCompile(`Persistent: +yes`).MatchString(info) {
		t.Errorf("Ensure did not define the undefined domain again: %v\n%s", err, info)
	}
	if _, err := daemon.Virsh(ctx, "undefine", "undefined"); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(images(daemon), "undefined*")); err != nil || len(left) != 0 {
		t.Errorf("after Remove the files %q are left, error %v", left, err)
	}
}

// Starting a machine clears its autostart flag, because the workload may run on another node after a
// reboot.
func TestAStartClearsAutostart(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 2*time.Minute)
	spec := order("auto", "c1:1", tiny(daemon, "serve"))
	ensured(t, ctx, d, spec)
	if _, err := daemon.Virsh(ctx, "autostart", "auto"); err != nil {
		t.Fatal(err)
	}
	if err := d.Halt(ctx, spec.ID, 0); err != nil {
		t.Fatal(err)
	}
	ensured(t, ctx, d, spec)
	if out, err := daemon.Virsh(ctx, "list", "--all", "--autostart", "--name"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("libvirt would start the domains %q at boot, want none: %v", out, err)
	}
}

// A machine whose memory was saved (virsh save) resumes from the saved state. After an update it boots from its
// disk instead, even if it was saved after the update was defined.
func TestUpdateOfASavedMachine(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 3*time.Minute)
	ensured(t, ctx, d, order("saved", "c1:1", tiny(daemon, "serve")))
	uuid := uuidOf(testCluster, "saved")
	save := func() {
		t.Helper()
		if _, err := daemon.Virsh(ctx, "managedsave", "saved"); err != nil {
			t.Fatal(err)
		}
	}
	// boots returns how often the guest was booted. It counts the line that the guest writes to the
	// console at each boot.
	boots := func() int {
		t.Helper()
		var text string
		testbed.Within(t, 30*time.Second, "the guest's first line", func() (err error) {
			if text, err = consoleLog(ctx, d, "saved"); err == nil && !strings.Contains(text, libvirttest.TinyLine) {
				err = fmt.Errorf("console %q", text)
			}
			return err
		})
		return strings.Count(text, libvirttest.TinyLine)
	}
	before := boots()
	save()
	ensured(t, ctx, d, order("saved", "c1:1", tiny(daemon, "serve")))
	if again := boots(); again != before {
		t.Errorf("a guest whose memory was saved was booted instead of resumed: its console shows %d boots, want %d", again, before)
	}
	save()
	if o := ensured(t, ctx, d, order("saved", "c1:2", tiny(daemon, "serve"))); o.Content != "c1:2" {
		t.Errorf("after the update the guest runs content %q, want c1:2", o.Content)
	}
	// An update of the machine has defined the new configuration. Before the driver stops the old guest,
	// somebody saves the guest's memory to an image (virsh save).
	spec := order("saved", "c1:3", tiny(daemon, "serve"))
	in, _, err := d.find(ctx, spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	p, err := makePlan(spec, "saved", d.at)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.define(ctx, spec, p, in); err != nil {
		t.Fatal(err)
	}
	save()
	if err := d.hv.start(ctx, uuid); err != nil {
		t.Fatal(err)
	}
	if o, err := listed(ctx, d, "saved"); err != nil || o.Content != "c1:3" {
		t.Errorf("the guest was saved during the update: List returned error %v and content %q, want c1:3", err, o.Content)
	}
}

// If the daemon hangs, the driver reports it as unreachable.
func TestAHangingDaemonCountsAsUnreachable(t *testing.T) {
	daemon, ctx, d := atDaemon(t, time.Minute, func(o *Options) { o.CallTimeout = 2 * time.Second })
	if _, err := d.List(ctx); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Signal(ctx, "STOP"); err != nil {
		t.Fatal(err)
	}
	_, err := d.List(ctx)
	if driver.ClassOf(err) != driver.RuntimeUnhealthy {
		t.Errorf("List while the daemon hangs returned %v, want class %s", err, driver.RuntimeUnhealthy)
	}
	if err := daemon.Signal(ctx, "CONT"); err != nil {
		t.Fatal(err)
	}
	testbed.Within(t, 20*time.Second, "the daemon that was stopped and continues answers again", func() error { _, err := d.List(ctx); return err })
}

// If the caller of Console gives up while libvirt opens the console, the connection of the console is closed.
func TestAConsoleThatIsNotWaitedForIsClosed(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 2*time.Minute)
	ensured(t, ctx, d, order("late", "c1:1", tiny(daemon, "serve")))
	open := func() int {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := open()
	if err := daemon.Signal(ctx, "STOP"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := daemon.Signal(ctx, "CONT"); err != nil {
			t.Error(err)
		}
	}()
	asked, giveUp := context.WithCancel(ctx)
	failed := make(chan error)
	go func() {
		_, err := d.hv.console(asked, uuidOf(testCluster, "late"))
		failed <- err
	}()
	testbed.Until(t, "the connection of the console is open", func() bool { return open() > before })
	giveUp()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("opening a console of a daemon that hangs returned %v, want %v", err, context.Canceled)
	}
	testbed.Until(t, "the connection of the console is closed", func() bool { return open() <= before })
}

// If a daemon accepts a connection and never answers, calls and Close are delayed no longer than the call
// timeout.
func TestDaemonThatNeverSpeaks(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{URI: "qemu+unix:///system?socket=" + socket, ClusterID: testCluster, NodeID: "node-a", CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 {
			if _, err := d.Probe(t.Context()); driver.ClassOf(err) != driver.RuntimeUnhealthy {
				t.Errorf("Probe of a daemon that never answers returned %v, want class %s", err, driver.RuntimeUnhealthy)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-done:
	case <-time.After(testbed.Patience):
		t.Error("a call to a daemon that never answers did not return within Options.CallTimeout")
	}
	l.Close() // the kernel then closes the connections that the fake daemon never accepted
	<-done
}

// A libvirt without QEMU cannot run guests. The driver reads its capabilities again at the next Probe,
// because QEMU may be installed while the agent runs.
func TestLibvirtWithoutQEMU(t *testing.T) {
	uri := strings.Replace(theDaemon(t).URI, "qemu+unix:///system", "test+unix:///default", 1)
	hv, err := connect(uri, testbed.Patience, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hv.close(); err != nil {
			t.Error(err)
		}
	})
	f, err := hv.facts(t.Context())
	if err != nil || f.kvm != nil || f.tcg != nil {
		t.Fatalf("Probe returned %+v, %v; want an unhealthy libvirt without guest types", f, err)
	}
	if again, err := hv.facts(t.Context()); err != nil || again == f {
		t.Errorf("the second call of facts returned error %v and the cached capabilities, want new ones", err)
	}
}

// The KVM probe runs only once, and guests boot with the machine type (KVM or emulation) that it chose.
func TestTheKVMProbeRunsOnce(t *testing.T) {
	daemon := theDaemon(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	auto := func(o *Options) { o.Acceleration = "auto" }
	d := openDriver(t, daemon, "node-a", auto)
	f, err := d.hv.facts(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if f.tcg == nil || f.tcg.Type == "" || f.tcg.Emulator == "" {
		t.Fatalf("facts %+v", f)
	}
	ensured(t, ctx, d, order("accel", "c1:1", tiny(daemon, "serve")))
	testbed.Within(t, 30*time.Second, "the guest's first line", func() error {
		text, err := consoleLog(ctx, d, "accel")
		if err == nil && !strings.Contains(text, libvirttest.TinyLine) {
			err = fmt.Errorf("console %q", text)
		}
		return err
	})
	xml, err := daemon.Virsh(ctx, "dumpxml", "accel")
	if err != nil || !strings.Contains(xml, "listen='127.0.0.1'") || strings.Contains(xml, "0.0.0.0") {
		t.Errorf("the VNC screen does not listen on the loopback address only: %v\n%s", err, xml)
	}
	if f.kvm == nil {
		t.Log("libvirt offers no KVM here, so the probe did not run")
		return
	}
	t.Logf("the KVM probe says: %v", d.accel.run.err)
	again := openDriver(t, daemon, "node-a", auto)
	again.accel.try = func(context.Context, *hostcaps.Machine) error {
		t.Error("a restarted driver ran the KVM probe again, although the result is stored")
		return nil
	}
	m, err := again.accel.choose(ctx, again, f)
	if err != nil || (m.Kind == "kvm") != (d.accel.run.err == nil) {
		t.Errorf("choose returned the machine type %+v, %v; the recorded result of the KVM probe is %v", m, err, d.accel.run.err)
	}
	// Check that the probe guest boots in emulation. Then a failure to boot under KVM is a fault of KVM and
	// not of the guest.
	if err := d.tryKVM(ctx, f.tcg); err != nil {
		t.Errorf("the probe guest does not boot in emulation: %v", err)
	}
}

// The driver makes a disk in a storage pool from the image, enlarges it in an update, and removes it together
// with the machine.
func TestADiskInAPoolIsMadeGrownAndRemoved(t *testing.T) {
	daemon := theDaemon(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := daemon.Dir + "/pool"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Virsh(ctx, "pool-define-as", "fast", "dir", "--target", dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = daemon.Virsh(context.Background(), "pool-destroy", "fast")
		_, _ = daemon.Virsh(context.Background(), "pool-undefine", "fast")
	})
	if _, err := daemon.Virsh(ctx, "pool-start", "fast"); err != nil {
		t.Fatal(err)
	}
	// Somebody else has created a volume with the name that earlier versions of the driver gave to the
	// workload's disk.
	const theirs = "pooled-vda.qcow2"
	if _, err := daemon.Virsh(ctx, "vol-create-as", "fast", theirs, "2M", "--format", "qcow2"); err != nil {
		t.Fatal(err)
	}
	ours := func() string {
		t.Helper()
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		all = slices.DeleteFunc(all, func(e os.DirEntry) bool { return e.Name() == theirs })
		if len(all) != 1 {
			t.Fatalf("the pool has the volumes %v besides %q of another user; want one volume of the machine", all, theirs)
		}
		return all[0].Name()
	}
	d := openDriver(t, daemon, "node-a")
	vm := tiny(daemon, "serve")
	vm.Disks[0].Pool = "fast"
	vm.Networks = []*agentv1.NetworkConfig{{Network: "default"}}
	spec := order("pooled", "c1:1", vm)
	ensured(t, ctx, d, spec)
	first := ours()
	pools, err := d.Pools(ctx)
	at := slices.IndexFunc(pools, func(p driver.Pool) bool { return p.Name == "fast" })
	var fs syscall.Statfs_t
	if err != nil || at < 0 || syscall.Statfs(dir, &fs) != nil {
		t.Fatalf("Pools returned %+v, %v; want fast among them", pools, err)
	}
	if p := pools[at]; p.Type != "local" || p.Total != int64(fs.Blocks)*fs.Bsize || p.Used <= 0 || p.Used > p.Total {
		t.Errorf("Pools returned %+v, want the size of the file system, %d bytes", p, int64(fs.Blocks)*fs.Bsize)
	}
	// A pool and a network that are inactive, as after a reboot, are started when the guest starts.
	if err := d.Halt(ctx, spec.ID, 0); err != nil {
		t.Fatal(err)
	}
	for _, down := range []string{"pool-destroy fast", "net-destroy default"} {
		if _, err := daemon.Virsh(ctx, strings.Fields(down)...); err != nil {
			t.Fatal(err)
		}
	}
	ensured(t, ctx, d, spec)
	// While the pool's storage is not mounted, the driver makes no new volume. After the mount it uses the old
	// volume again.
	vm.Disks[0].SizeGb, spec.Content = 1, "c1:2"
	if err := d.Halt(ctx, spec.ID, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Virsh(ctx, "pool-destroy", "fast"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	err = d.Ensure(ctx, spec)
	if left, lerr := os.ReadDir(dir); driver.ClassOf(err) != driver.StorageAttachFailed || lerr != nil || len(left) != 0 {
		t.Errorf("Ensure returned %v, and volume %v was made (%v); want an error that the storage is not mounted", err, left, lerr)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	ensured(t, ctx, d, spec)
	info, err := daemon.Virsh(ctx, "vol-info", "--pool", "fast", "--bytes", ours())
	if err != nil || !strings.Contains(info, "1073741824") || ours() != first {
		t.Errorf("after the mount virsh describes the volume as %q (error %v); want the volume from before, of 1 GiB", info, err)
	}
	other := filepath.Join(daemon.Dir, "other.img")
	if err := libvirttest.WriteTiny(other, libvirttest.Serve); err != nil {
		t.Fatal(err)
	}
	vm.OsImage, spec.Content = other, "c1:3"
	if ensured(t, ctx, d, spec); ours() == first {
		t.Errorf("after an update to another image the guest still runs on the old volume %s", first)
	}
	info, err = daemon.Virsh(ctx, "vol-info", "--pool", "fast", "--bytes", theirs)
	if err != nil || !strings.Contains(info, "2097152") {
		t.Errorf("the driver changed the volume of another user to %q (error %v)", info, err)
	}
	if err := d.Remove(ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != theirs {
		t.Errorf("after Remove the pool has the volumes %v (error %v); want only %q of another user", left, err, theirs)
	}
	vm.Disks[0].Pool = "nowhere"
	if err := d.Ensure(ctx, spec); driver.ClassOf(err) != driver.StorageProvisionFailed || !strings.Contains(err.Error(), `"nowhere"`) {
		t.Errorf("Ensure with an unknown pool returned %v, want class %s and the pool's name", err, driver.StorageProvisionFailed)
	}
}

// The agent takes over a machine that a legacy v1 agent made, and changes nothing. When the machine is deleted,
// the agent also deletes those disks that have a mark file, which shows that an agent made them.
func TestAMachineOfALegacyAgentIsAdopted(t *testing.T) {
	daemon := theDaemon(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := daemon.Dir + "/legacy"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, marker := range map[string]string{"old-vda.img": "2025-01-01T00:00:00Z", "mine.img": ""} {
		if err := libvirttest.WriteTiny(dir+"/"+name, libvirttest.Serve); err != nil {
			t.Fatal(err)
		}
		if marker != "" {
			if err := os.WriteFile(dir+"/"+name+diskfile.MarkSuffix, []byte(marker), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	disk := func(dev, file string) string {
		return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s/%s'/><target dev='%s' bus='virtio'/></disk>`, dir, file, dev)
	}
	if err := daemon.Define(ctx, `<domain type='qemu'><name>old</name><memory unit='MiB'>24</memory><os><type>hvm</type></os><devices>`+
		disk("vda", "old-vda.img")+disk("vdb", "mine.img")+`</devices></domain>`); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Virsh(ctx, "start", "old"); err != nil {
		t.Fatal(err)
	}
	stranger := openDriver(t, daemon, "node-a")
	if o, err := listed(ctx, stranger, "old"); err != nil || o.State != driver.Absent {
		t.Errorf("List returned %+v, %v: it contains a machine that the store does not list", o, err)
	}
	d := openDriver(t, daemon, "node-a", func(o *Options) {
		o.Owns = func(id driver.ID) bool { return id == "old" }
		o.Content = func(driver.ID, string) (string, bool) { return "c1:1", true }
	})
	before, err := listed(ctx, d, "old")
	if err != nil || before.State != driver.Running || before.Owned {
		t.Fatalf("List returned %+v, %v; want a running machine with Owned false", before, err)
	}
	spec := order("old", "c1:1", &agentv1.VMSpec{Vcpus: 1, MemoryMb: 24, Disks: []*agentv1.DiskConfig{{Device: "vda", Format: "raw", Path: dir + "/old-vda.img"}}})
	if err := d.Ensure(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if after, err := listed(ctx, d, "old"); err != nil || after.RuntimeID != before.RuntimeID || after.State != driver.Running {
		t.Errorf("the driver adopted the machine as %+v, %v; want it unchanged, %+v", after, err, before)
	}
	if err := d.Remove(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	if there, _ := diskfile.Exists(dir + "/old-vda.img"); there {
		t.Error("Remove left the disk of the legacy v1 agent that has a mark file")
	}
	if there, _ := diskfile.Exists(dir + "/mine.img"); !there {
		t.Error("Remove deleted the disk without a mark file, which may belong to somebody else")
	}
}
