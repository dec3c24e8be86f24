package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	"github.com/persys/compute/agent/driver/libvirt/libvirttest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// realGuest returns an image with a small Linux system.
func realGuest(t *testing.T) string {
	t.Helper()
	image, err := libvirttest.Guest(t.Context())
	testbed.Need(t, "a real guest", err)
	return image
}

func consoleLog(ctx context.Context, d *Driver, id driver.ID) (string, error) {
	rc, err := d.Logs(ctx, id, driver.LogOptions{})
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(rc)
	return string(text), errors.Join(err, rc.Close())
}

// This test runs a real guest. The guest boots from an image, reads the input of cloud-init, gets its address,
// accepts console input, and survives a restart of libvirt. It is stopped and started on the same disk, updated
// on the same disk, and deleted with all its files.
func TestARealGuestBootsAndIsUpdated(t *testing.T) {
	daemon := theDaemon(t)
	image := realGuest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	d := openDriver(t, daemon, "node-a", func(o *Options) { o.StopGrace = 30 * time.Second })
	const id = driver.ID("real")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			text, err := consoleLog(ctx, d, id)
			t.Logf("console: %s %v", text, err)
			_ = d.Halt(ctx, id, 0)
		}
		if err := d.Remove(ctx, id); err != nil {
			t.Error(err)
		}
	})
	external := images(daemon) + "/external.img"
	if err := os.MkdirAll(images(daemon), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(external, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	vm := &agentv1.VMSpec{
		Name: "Real_One", Vcpus: 1, MemoryMb: 192, OsImage: image,
		Disks:    []*agentv1.DiskConfig{{Device: "vda", Format: "qcow2", SizeGb: 1}, {Device: "vdb", Format: "raw", Path: external}, {Device: "vdc", Format: "raw", SizeGb: 1}},
		Networks: []*agentv1.NetworkConfig{{Network: "default"}, {Network: "default", IpAddress: "192.168.122.222"}},
		// base64 of "#cloud-config\nfinal_message: it is me\n".
		CloudInitConfig: &agentv1.CloudInitConfig{UserData: "I2Nsb3VkLWNvbmZpZwpmaW5hbF9tZXNzYWdlOiBpdCBpcyBtZQo="},
		Login:           &agentv1.VMLogin{User: "ops", SshAuthorizedKeys: []string{"ssh-ed25519 AAAA ops"}},
	}
	spec := driver.Spec{
		ID: id, Revision: "1", Content: "c1:1", ClusterID: testCluster, NodeID: "node-a", Running: true, Body: body(vm),
	}
	start := time.Now()
	ensure := func() {
		t.Helper()
		if err := d.Ensure(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	says := func(lines ...string) {
		t.Helper()
		testbed.Within(t, 10*time.Minute, "the guest's console", func() error {
			text, err := consoleLog(ctx, d, id)
			if err != nil {
				return err
			}
			for _, l := range lines {
				if !strings.Contains(text, l) {
					return fmt.Errorf("no %q", l)
				}
			}
			return nil
		})
	}
	ensure()
	t.Logf("started after %s", time.Since(start))
	says("guest: ready", "guest: boot 1", "guest: disk 1024 MiB", "user-data| final_message: it is me",
		"meta-data| local-hostname: real-one", "network-config| version: 2", "vendor-data|     - name: ops")
	t.Logf("ready after %s", time.Since(start))
	testbed.Within(t, 5*time.Minute, "the leased address", func() error {
		o, err := listed(ctx, d, id)
		if err != nil {
			return err
		}
		if len(o.Addresses) < 2 || !slices.Contains(o.Addresses, "192.168.122.222") || o.Metadata["vm.primary_ip"] == "" {
			return fmt.Errorf("the guest has the addresses %v and the metadata %v", o.Addresses, o.Metadata)
		}
		return nil
	})
	says("guest: address 192.168.122.222/24")

	// Write to and read from the console.
	con, err := d.Console(ctx, id, driver.ConsoleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := con.Write([]byte("ping\n")); err != nil {
		t.Fatal(err)
	}
	heard := make(chan bool, 1)
	go func() {
		var text strings.Builder
		for {
			piece, err := con.Output()
			text.Write(piece.Data)
			if err != nil || strings.Contains(text.String(), "guest: pong") {
				heard <- err == nil
				return
			}
		}
	}()
	select {
	case ok := <-heard:
		if !ok {
			t.Error("the console session ended before the guest answered the input")
		}
	case <-time.After(5 * time.Minute):
		t.Error("the guest did not answer the input on its console in time")
	}
	if err := con.Close(); err != nil {
		t.Error(err)
	}

	usage, err := d.Usage(ctx, []driver.Observed{{ID: id, Name: string(id)}})
	if err != nil || len(usage) != 1 || usage[0].CPU == 0 || usage[0].Memory == 0 || usage[0].DiskRead == 0 || usage[0].NetReceived == 0 {
		t.Errorf("Usage returned %+v, error %v; want the usage of the guest", usage, err)
	}

	// After libvirt is killed and started again, the same guest still runs, without a restart.
	before, err := listed(ctx, d, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	testbed.Within(t, 2*time.Minute, "the driver lists the guest after libvirt's restart", func() error {
		after, err := listed(ctx, d, id)
		if err != nil {
			return err
		}
		if after.State != driver.Running || after.RuntimeID != before.RuntimeID || !after.StartedAt.Equal(before.StartedAt) {
			return fmt.Errorf("%+v", after)
		}
		return nil
	})
	ensure()

	// Stop the guest by its power button, and start it on the same disk.
	at := time.Now()
	if err := d.Halt(ctx, id, 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped within %s", time.Since(at))
	says("guest: power button", "guest: bye")
	if o, err := listed(ctx, d, id); err != nil || o.State != driver.Stopped || o.FinishedAt.IsZero() {
		t.Errorf("after Halt List returned %+v, error %v; want the guest Stopped with an end time", o, err)
	}
	ensure()
	says("guest: boot 2")

	// Update the guest: it gets other sizes of memory and disk and another cloud-init seed, and keeps the
	// content of its disk.
	vm.MemoryMb, vm.Disks[0].SizeGb, vm.Disks = 224, 2, vm.Disks[:2]
	vm.CloudInitConfig = &agentv1.CloudInitConfig{UserData: "#cloud-config\nfinal_message: changed\n"}
	spec.Content, spec.Revision = "c1:2", "2"
	ensure()
	says("guest: boot 3", "guest: disk 2048 MiB", "user-data| final_message: changed")
	if o, err := listed(ctx, d, id); err != nil || o.RuntimeID == before.RuntimeID || o.Content != "c1:2" {
		t.Errorf("after the update List returned %+v, error %v; want a new instance with content c1:2", o, err)
	}
	if there, _ := diskfile.Exists(images(daemon) + "/real-vdc.img"); there {
		t.Error("the update left the file of the disk that the new specification does not name")
	}

	// Delete the guest: the driver removes the files that it made and no others.
	if err := d.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(images(daemon))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "real") {
			t.Errorf("Remove left the file %s of the machine", f.Name())
		}
	}
	if there, err := diskfile.Exists(external); err != nil || !there {
		t.Errorf("Remove deleted the external disk: %v", err)
	}
	t.Logf("the whole test took %s", time.Since(start))
}
