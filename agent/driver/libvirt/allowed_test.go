package libvirt

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
)

// TestRulesJudgeMachines: a virtual machine may use neither the disk of another workload (as a disk or as an
// image) nor other files of the host. It may use its own disks at the driver's default paths.
func TestRulesJudgeMachines(t *testing.T) {
	w := newDrawer(t)
	images := w.at.images
	mark := diskfile.Mark{Cluster: "c", Node: "n", Workload: "bank"}
	if err := mark.Write(filepath.Join(images, "bank-vda.qcow2")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bank-vda.qcow2", "debian.qcow2"} {
		if err := diskfile.Make(t.Context(), filepath.Join(images, name), "qcow2", 1<<20, nil); err != nil {
			t.Fatal(err)
		}
	}
	base, _ := policy.Builtin(policy.Baseline)
	disk := func(path string) []*agentv1.DiskConfig {
		return []*agentv1.DiskConfig{{Device: "vda", Path: path, SizeGb: 1}}
	}
	for _, tt := range []struct {
		name    string
		vm      *agentv1.VMSpec
		refused []string
	}{
		{"an image in the driver's folder of images is allowed", &agentv1.VMSpec{OsImage: "debian.qcow2", Disks: disk("")}, nil},
		{"a disk at the path that schedulers set is allowed", &agentv1.VMSpec{Disks: disk(defaultImages + "/ID-vda.qcow2")}, nil},
		{"the workload's own disk in this node's folder of images is allowed", &agentv1.VMSpec{Disks: disk(images + "/ID-vda.qcow2")}, nil},
		{"the disk of another workload, as an image, is refused", &agentv1.VMSpec{OsImage: "bank-vda.qcow2", Disks: disk("")}, []string{"vm.image", "bank-vda.qcow2", "rule disks"}},
		{"the disk of another workload is refused", &agentv1.VMSpec{Disks: disk(images + "/bank-vda.qcow2")}, []string{"vm.disks[0].path", "rule disks"}},
		{"the disk of another workload, at a path that schedulers set, is refused", &agentv1.VMSpec{Disks: disk(defaultImages + "/bank-vda.qcow2")}, []string{"vm.disks[0].path", "rule disks"}},
		{"a disk device of the host is refused", &agentv1.VMSpec{Disks: disk("/dev/sda")}, []string{`"/dev/sda"`, "rule disks"}},
		{"a file of the host, as an image, is refused", &agentv1.VMSpec{OsImage: "/etc/shadow", Disks: disk("")}, []string{"vm.image", "rule disks"}},
		{"a bridge", &agentv1.VMSpec{Disks: disk(""), Networks: []*agentv1.NetworkConfig{{Network: "br0"}}}, []string{`"br0"`, "rule networks"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.vm.Vcpus, tt.vm.MemoryMb = 1, 64
			spec := specFor(tt.vm)
			spec.ID = driver.ID(strings.ReplaceAll(tt.name, " ", "-"))
			for _, d := range tt.vm.Disks {
				d.Path = strings.ReplaceAll(d.Path, "ID", string(spec.ID))
			}
			spec.Rules = &driver.Rules{Policies: []driver.Rule{{Policy: base}}, CPU: 1000, Memory: 64}
			err := w.Ensure(t.Context(), spec)
			if tt.refused == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if driver.ClassOf(err) != driver.InvalidSpecification {
				t.Fatalf("Ensure returned %v, want a refusal by the policy", err)
			}
			for _, word := range tt.refused {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error of Ensure lacks %q: %v", word, err)
				}
			}
			if _, made := w.hv.all[string(spec.ID)]; made {
				t.Error("a domain was defined although the workload was refused")
			}
		})
	}
}
