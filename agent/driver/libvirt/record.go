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

// namespace of our element in a domain's metadata.
const namespace = "https://persys.dev/libvirt/workload/1"

// record is our element: what we must find again after a restart of anything. It is JSON in the
// element's text.
type record struct {
	Labels map[string]string `json:"labels"`
	// Instance is new with every definition of another content.
	Instance string    `json:"instance"`
	Created  time.Time `json:"created,omitzero"`
	// Started is of the last start, Finished and End of its end; zero while it runs.
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	End      string    `json:"end,omitempty"`
	// Disks are those that we made, Leftover those that only a replaced definition had.
	Disks    []ownDisk `json:"disks,omitempty"`
	Leftover []ownDisk `json:"leftover,omitempty"`
	Seed     *seedFact `json:"seed,omitempty"`
	CPU      *cpuFact  `json:"cpu,omitempty"`
	// Console is the file with the serial console's output.
	Console string `json:"console,omitempty"`
	// Static are the addresses that the guest was told to take, without prefix length.
	Static []string `json:"static,omitempty"`
	// Leases is the number of interfaces whose address somebody else gives.
	Leases int `json:"leases,omitempty"`
	// Fixed are the interfaces with a static address, by their MAC addresses.
	Fixed []string `json:"fixed,omitempty"`
	// Heard are the addresses that each interface said it has since the last start, so that an agent
	// which restarts knows them: a guest may not say it again for days.
	Heard map[string][]string `json:"heard,omitempty"`
}

// asked are those of a domain's interfaces whose address somebody else gives. Of one with a static address
// the network may still know the former one: it keeps its MAC address over an update.
func (r *record) asked(nics []address) []address {
	if r == nil { // a legacy v1 agent made it
		return nics
	}
	if r.Leases == 0 {
		return nil
	}
	return slices.DeleteFunc(nics, func(n address) bool { return slices.Contains(r.Fixed, n.mac) })
}

// runs: it was started, and has not ended as far as was seen.
func (r *record) runs() bool { return !r.Started.IsZero() && r.Finished.IsZero() }

// addressed writes down who gives the addresses of a machine's interfaces.
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

// ownDisk is a disk that we made: a file, or a volume of a storage pool.
type ownDisk struct {
	Device string `json:"device"`
	Path   string `json:"path,omitempty"`
	Pool   string `json:"pool,omitempty"`
	Volume string `json:"volume,omitempty"`
	Format string `json:"format,omitempty"`
	// Image is what it was made from.
	Image string `json:"image,omitempty"`
	// Staged: the file is at Path + diskfile.StagedSuffix until the former guest is stopped.
	Staged bool `json:"staged,omitempty"`
	// Former is the format of the file at Path meanwhile.
	Former string `json:"former,omitempty"`
	// SizeGB is what it is grown to when it is smaller.
	SizeGB int64 `json:"size_gb,omitempty"`

	// unsure: nobody knows what it was made from. Never so in a record.
	unsure bool
	// used: a guest was defined with it.
	used bool
}

func (d ownDisk) same(o ownDisk) bool {
	return d.Path == o.Path && d.Pool == o.Pool && d.Volume == o.Volume
}

// seedFact is what the status tells of a seed (contract/semantics.md, section 11).
type seedFact struct {
	Path     string    `json:"path"`
	Checksum string    `json:"checksum"`
	Size     int64     `json:"size"`
	At       time.Time `json:"at,omitzero"`
	// Addressed: the instance id follows the static addresses.
	Addressed bool `json:"addressed,omitempty"`
	// Other: it is otherMeta's of the seedPlan.
	Other bool `json:"other,omitempty"`
}

// element is the record as it stands in the metadata of a whole domain's XML.
func (r record) element() string {
	return `<persys:workload xmlns:persys="` + namespace + `">` + r.text() + `</persys:workload>`
}

// bare is the record as libvirt takes it alone: it adds the namespace itself.
func (r record) bare() string { return "<workload>" + r.text() + "</workload>" }

func (r record) text() string {
	raw, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings, times and numbers only
	}
	var out strings.Builder
	if err := xml.EscapeText(&out, raw); err != nil {
		panic(err) // a Builder takes everything
	}
	return out.String()
}

// readRecord finds our element in the XML of a domain; nil if it has none that can be read, which
// makes the domain somebody else's.
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

// of judges a domain by the labels of its record.
func (d *Driver) of(r *record, name string) driver.Ownership {
	if r == nil {
		// A legacy v1 agent names the domain after the workload and leaves no other trace.
		if d.opt.Owns != nil && d.opt.Owns(driver.ID(name)) {
			return driver.Claimed
		}
		return driver.Stranger
	}
	if r.Labels[driver.LabelKind] != string(driver.VM) {
		return driver.Stranger
	}
	return d.identity.Of(r.Labels)
}

// change rewrites our element, in both copies while it runs, from what they are now.
func (d *Driver) change(ctx context.Context, in *instance, edit func(*record)) error {
	release, err := d.hold(ctx, in.uuid)
	if err != nil {
		return err
	}
	defer release()
	now, err := d.again(ctx, in.name)
	if err != nil {
		return err
	}
	// What was seen of it must still be so: a look may have waited for whoever starts or stops it.
	if now.uuid != in.uuid || now.config == nil || !now.persistent || now.active != in.active {
		return nil
	}
	// A running guest may have another description than the one for the next start.
	live := now.active && now.live != nil && now.live.Instance == now.config.Instance
	edit(now.config)
	if err := d.hv.note(ctx, in.uuid, now.config.bare(), live); err != nil {
		return err
	}
	*in = *now
	return nil
}

// hold waits until nobody else changes the record of a machine.
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
