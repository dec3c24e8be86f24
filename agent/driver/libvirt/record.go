package libvirt

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/nocloud"
)

// the XML namespace of the element with our record in a domain's metadata
const namespace = "https://persys.dev/libvirt/workload/1"

// record is the content of the element that the driver adds to the metadata of its domains. It holds everything
// that must survive a restart of the agent, of libvirt or of the machine. It is stored as JSON in the element's
// text.
type record struct {
	Labels map[string]string `json:"labels"`
	// Instance is the cloud-init instance id. If an update changes the cloud-init content, the domain
	// gets another instance id, so that cloud-init runs again.
	Instance string    `json:"instance"`
	Created  time.Time `json:"created,omitzero"`
	// Started is the time of the last start. Finished is the time at which the guest ended after that start,
	// and End is the reason; both are zero while the guest runs.
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	End      string    `json:"end,omitempty"`
	// Disks are the disks that the driver made for the current definition. Leftover are disks that only the
	// previous definition of the domain used, so that they are deleted when the old guest has stopped.
	Disks    []ownDisk `json:"disks,omitempty"`
	Leftover []ownDisk `json:"leftover,omitempty"`
	Seed     *seedFact `json:"seed,omitempty"`
	CPU      *cpuFact  `json:"cpu,omitempty"`
	// Console is the path of the file with the serial console's output.
	Console string `json:"console,omitempty"`
	// Static are the guest's static addresses, without prefix length.
	Static []string `json:"static,omitempty"`
	// Leases is the number of interfaces without a static address, which get their address by DHCP or
	// in another way.
	Leases int `json:"leases,omitempty"`
	// Fixed are the MAC addresses of the interfaces with a static address.
	Fixed []string `json:"fixed,omitempty"`
	// Heard are the addresses that each interface announced by ARP since the last start. A restarted
	// agent needs them, because a guest may not announce them again for days.
	Heard map[string][]string `json:"heard,omitempty"`
}

// asked returns those interfaces in nics that have no static address. The driver asks libvirt for the DHCP
// leases of only these interfaces. An interface that got a static address by an update keeps its MAC address,
// so libvirt may still report an old lease for it.
func (r *record) asked(nics []address) []address {
	if r == nil { // no record: a legacy v1 agent made the domain
		return nics
	}
	if r.Leases == 0 {
		return nil
	}
	return slices.DeleteFunc(nics, func(n address) bool { return slices.Contains(r.Fixed, n.mac) })
}

// runs reports whether the guest runs, according to the record: it has a start time and no end
// time.
func (r *record) runs() bool { return !r.Started.IsZero() && r.Finished.IsZero() }

// addressed stores in the record which interfaces have static addresses (Static and Fixed), and how many have
// none (Leases).
func (r *record) addressed(nics []nocloud.Interface) {
	for _, n := range nics {
		if n.Static == "" {
			r.Leases++
		} else if prefix, err := nocloud.Prefix(n.Static); err == nil {
			r.Static = append(r.Static, prefix.Addr().String())
			r.Fixed = append(r.Fixed, n.MAC)
		}
	}
}

// ownDisk is a disk that we made: a file or a volume of a storage pool.
type ownDisk struct {
	Device string `json:"device"`
	Path   string `json:"path,omitempty"`
	Pool   string `json:"pool,omitempty"`
	Volume string `json:"volume,omitempty"`
	Format string `json:"format,omitempty"`
	// Image is the image from which the disk was made.
	Image string `json:"image,omitempty"`
	// Staged means that the disk is complete but its file is still at Path + diskfile.StagedSuffix, until the
	// old guest, which uses the file at Path, has stopped.
	Staged bool `json:"staged,omitempty"`
	// Former is the format of the old disk file, which is still at Path while Staged is set.
	Former string `json:"former,omitempty"`
	// SizeGB is the size to which a disk is enlarged if it is smaller.
	SizeGB int64 `json:"size_gb,omitempty"`

	// unsure means that the image is unknown. It is not stored in the record.
	unsure bool
	// used means that a domain was defined with the disk, so a guest may have written to it.
	used bool
}

func (d ownDisk) same(o ownDisk) bool {
	return d.Path == o.Path && d.Pool == o.Pool && d.Volume == o.Volume
}

// seedFact holds the facts about a NoCloud seed (the disk image with the input of cloud-init) that the
// workload's status shows (contract/semantics.md, section 11).
type seedFact struct {
	Path     string    `json:"path"`
	Checksum string    `json:"checksum"`
	Size     int64     `json:"size"`
	At       time.Time `json:"at,omitzero"`
	// Addressed means that the cloud-init instance id depends on the static addresses.
	Addressed bool `json:"addressed,omitempty"`
	// Other means that the domain has the instance id in seedPlan.otherMeta.
	Other bool `json:"other,omitempty"`
}

// element returns the record as an element of the metadata in a domain's XML.
func (r record) element() string {
	return `<persys:workload xmlns:persys="` + namespace + `">` + r.text() + `</persys:workload>`
}

// bare returns the record as an XML element without namespace, for libvirt's metadata call, which adds the
// namespace itself.
func (r record) bare() string { return "<workload>" + r.text() + "</workload>" }

func (r record) text() string {
	raw, err := json.Marshal(r)
	if err != nil {
		panic(err) // cannot happen: the record holds only strings, times and numbers
	}
	var out strings.Builder
	if err := xml.EscapeText(&out, raw); err != nil {
		panic(err) // cannot happen: a strings.Builder accepts every write
	}
	return out.String()
}

// readRecord returns the record in our metadata element in the XML of a domain. It returns nil if there is no
// readable record: then the domain is treated as not made by us.
func readRecord(domainXML string) *record {
	var d struct {
		Metadata struct {
			Workload string `xml:"https://persys.dev/libvirt/workload/1 workload"`
		} `xml:"metadata"`
	}
	if xml.Unmarshal([]byte(domainXML), &d) != nil || d.Metadata.Workload == "" {
		return nil
	}
	r := &record{}
	if json.Unmarshal([]byte(d.Metadata.Workload), r) != nil || r.Labels == nil {
		return nil
	}
	return r
}

// of returns the owner of a domain from the labels of its record.
func (d *Driver) of(r *record, name string) driver.Ownership {
	if r == nil {
		// A legacy v1 agent names the domain after the workload and writes no metadata.
		if d.opt.Owns != nil && d.opt.Owns(driver.ID(name)) {
			return driver.Claimed
		}
		return driver.Foreign
	}
	if r.Labels[driver.LabelKind] != string(driver.VM) {
		return driver.Foreign
	}
	return d.identity.Of(r.Labels)
}

// change reads the record of a domain, applies edit and writes the record back. While the guest runs, it
// writes the record to both descriptions.
func (d *Driver) change(ctx context.Context, in *instance, edit func(*record)) error {
	release, err := d.hold(ctx, in.uuid)
	if err != nil {
		return err
	}
	defer release()
	now, err := d.reload(ctx, in.name)
	if err != nil {
		return err
	}
	// Check that the domain did not change since it was observed: this call may have waited for a start or
	// stop.
	if now.uuid != in.uuid || now.config == nil || !now.persistent || now.active != in.active {
		return nil
	}
	// Change the record in the live description too, unless that description belongs to an older definition.
	live := now.active && now.live != nil && now.live.Instance == now.config.Instance
	edit(now.config)
	if err := d.hv.note(ctx, in.uuid, now.config.bare(), live); err != nil {
		return err
	}
	*in = *now
	return nil
}

// hold locks the record of a domain, after it has waited until no other call changes the record. release
// unlocks it.
func (d *Driver) hold(ctx context.Context, uuid string) (release func(), err error) {
	mine := make(chan struct{})
	for {
		d.mu.Lock()
		other := d.changing[uuid]
		if other == nil {
			d.changing[uuid] = mine
		}
		d.mu.Unlock()
		if other == nil {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() {
		d.mu.Lock()
		delete(d.changing, uuid)
		d.mu.Unlock()
		close(mine)
	}, nil
}

// sameNamespace returns an error if the domain in belongs to another namespace than spec. in is nil if there
// is no domain.
func (d *Driver) sameNamespace(spec driver.Spec, in *instance, name string) error {
	if in == nil {
		return nil
	}
	var labels map[string]string
	if in.config != nil {
		labels = in.config.Labels
	}
	return driver.CheckNamespace(spec, "machine "+name, labels, d.of(in.config, name) == driver.Claimed)
}

// Foreign implements driver.Namespaced. It reads the namespace from the record of the workload's domain.
func (d *Driver) Foreign(ctx context.Context, id driver.ID, namespace string) (bool, error) {
	in, err := d.mine(ctx, id)
	return in != nil && in.config != nil && driver.OtherNamespace(in.config.Labels, namespace), err
}
