package libvirt

import (
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	"github.com/persys/compute/policy/asks"
)

// allowed returns an error if the policies forbid the host resources, such as files of the host, that the
// specification of a virtual machine uses. It also refuses a disk of another workload; the mark file beside a
// disk names its workload.
func (d *Driver) allowed(spec driver.Spec, domain string) error {
	marked := func(path string) bool {
		there, err := diskfile.Exists(path + diskfile.MarkSuffix)
		return there || err != nil
	}
	own := asks.Machine{Names: []string{string(spec.ID), domain}, Images: d.at.images, IsDisk: marked}
	return spec.Judge(driver.VM, asks.VM(spec.Body.GetVm(), own), nil)
}
