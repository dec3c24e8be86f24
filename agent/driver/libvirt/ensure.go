package libvirt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
	"github.com/persys/compute/agent/driver/libvirt/nocloud"
)

// instance is the libvirt domain of a workload. If the driver made the domain, its record is in both
// descriptions of the domain: the configuration for the next start, and the live one.
type instance struct {
	domain
	config, live *record // our records in the domain's two descriptions; live is nil while the domain is off
}

func (in *instance) read(d domain) {
	in.domain = d
	in.config, in.live = readRecord(d.config), nil
	if d.active {
		in.live = readRecord(d.live)
	}
}

// find looks for a workload's domain under its two possible names. It also returns the name for a new
// domain: the workload's id, or, if another agent's domain has that name, the id with the node's name
// appended.
func (d *Driver) find(ctx context.Context, id driver.ID) (in *instance, name string, err error) {
	for _, name := range []string{string(id), string(id) + "--" + d.opt.NodeID} {
		dom, err := d.hv.domain(ctx, name)
		if errors.Is(err, errAbsent) {
			return nil, name, nil
		}
		if err != nil {
			return nil, "", err
		}
		in := &instance{}
		in.read(*dom)
		switch d.of(in.config, name) {
		case driver.Owned, driver.Claimed:
			if in.config == nil || in.config.Labels[driver.LabelWorkload] == string(id) {
				return in, name, nil
			}
		case driver.Sibling:
			continue
		}
		return nil, name, &strange{name: name, record: in.config}
	}
	return nil, "", driver.Errorf(driver.NameConflict, "define", "both possible domain names of workload %q are used by other agents of the cluster on this hypervisor", id)
}

// strange is the error that the name of a workload is in use by a foreign domain, which no agent of our cluster
// made.
type strange struct {
	name   string
	record *record
}

func (e *strange) Error() string {
	who := "no agent of this cluster made it"
	if e.record != nil {
		who = "it belongs to cluster " + e.record.Labels[driver.LabelCluster]
	}
	return "libvirt domain " + e.name + " exists already and " + who + "; rename or undefine that domain (virsh domrename), or use another workload id"
}

// mine returns a workload's domain. If the domain of that name is foreign, mine returns nil without error.
func (d *Driver) mine(ctx context.Context, id driver.ID) (*instance, error) {
	in, _, err := d.find(ctx, id)
	var other *strange
	if errors.As(err, &other) {
		return nil, nil
	}
	return in, err
}

// contentOf returns the content (hash of the specification) of the domain, as recorded in r, one of its two
// descriptions. For a domain that a legacy v1 agent made, it asks the agent's store.
func (d *Driver) contentOf(r *record, in *instance, spec driver.Spec) string {
	if r != nil {
		return r.Labels[driver.LabelContent]
	}
	if in.config == nil && d.opt.Content != nil {
		if content, ok := d.opt.Content(spec.ID, in.uuid); ok {
			return content
		}
	}
	return ""
}

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, spec driver.Spec) error {
	if err := d.identity.Check(spec); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	in, name, err := d.find(ctx, spec.ID)
	var other *strange
	if errors.As(err, &other) {
		return driver.Errorf(driver.NameConflict, "define", "workload %q: %w", spec.ID, other)
	}
	if err != nil {
		return err
	}
	if err := d.sameNamespace(spec, in, name); err != nil {
		return err
	}
	// Make the plan first, so that an invalid specification is an error even if the domain needs no change.
	p, err := makePlan(spec, name, d.at)
	if err != nil {
		return err
	}
	fits := in != nil && in.persistent && d.contentOf(in.config, in, spec) == spec.Content
	if fits && spec.Running && !in.active && !d.whole(in) {
		fits = false // a person deleted a disk that we made; make it again
	}
	if !fits {
		if err := d.allowed(spec, name); err != nil {
			return err
		}
		if err := d.define(ctx, spec, p, in); err != nil {
			return err
		}
		if in, err = d.reload(ctx, name); err != nil {
			return err
		}
	}
	if in.active && d.contentOf(in.live, in, spec) != spec.Content {
		if err := d.stop(ctx, in, d.opt.StopGrace); err != nil {
			return err
		}
		if in, err = d.reload(ctx, name); err != nil {
			return err
		}
	}
	if !in.active {
		if err := d.tidy(ctx, in); err != nil {
			return err
		}
	}
	if fits && spec.Running && !in.active { // define has checked the networks of a new definition; for an unchanged one, check them before the start
		if _, _, err := d.networks(ctx, p); err != nil {
			return err
		}
	}
	cause := d.settle(ctx, in, spec.Running)
	var no *noQuota
	if !errors.As(cause, &no) {
		return cause
	}
	// libvirt refused the CPU quota: start the guest without a quota, and report this in its status.
	f, err := d.hv.facts(ctx)
	if err != nil {
		return err
	}
	d.quotas.refused(f, cause)
	if err := d.define(ctx, spec, p, in); err != nil {
		return err
	}
	if in, err = d.reload(ctx, name); err != nil {
		return err
	}
	return d.settle(ctx, in, spec.Running)
}

func (d *Driver) reload(ctx context.Context, name string) (*instance, error) {
	dom, err := d.hv.domain(ctx, name)
	if err != nil {
		return nil, err
	}
	in := &instance{}
	in.read(*dom)
	return in, nil
}

// whole reports whether the disk files and the cloud-init seed (the disk image with the input of cloud-init)
// that the driver made for an instance still exist.
func (d *Driver) whole(in *instance) bool {
	if in.config == nil {
		return true
	}
	var files []string
	for _, o := range in.config.Disks {
		if o.Staged {
			if there, _ := diskfile.Exists(o.Path + diskfile.StagedSuffix); there {
				continue
			}
		}
		if o.Path != "" {
			files = append(files, o.Path)
		}
	}
	if s := in.config.Seed; s != nil {
		files = append(files, s.Path)
	}
	return !slices.ContainsFunc(files, func(f string) bool {
		there, err := diskfile.Exists(f)
		return err == nil && !there
	})
}

// define prepares the networks and disks of a plan and its seed (the disk image with the input of cloud-init),
// and defines the domain.
func (d *Driver) define(ctx context.Context, spec driver.Spec, p *plan, old *instance) error {
	f, err := d.hv.facts(ctx)
	if err != nil {
		return err
	}
	m, err := d.accel.choose(ctx, d, f)
	if err != nil {
		return err
	}
	at := found{machine: m, vnc: d.opt.VNC}
	if old != nil {
		p.uuid = old.uuid // keep the UUID also if a legacy v1 agent made the domain
	}
	var bytes [6]byte
	_, _ = rand.Read(bytes[:])
	keep := d.at.keep(p.domain)
	at.record = record{
		Labels:   driver.Labels(driver.VM, spec, spec.Body.GetVm().GetMetadata()),
		Instance: hex.EncodeToString(bytes[:]), Created: time.Now().UTC(),
		Console: filepath.Join(keep, "console-"+tag(spec.Content)+".log"),
	}
	if old != nil && old.live != nil && old.live.Labels[driver.LabelContent] == spec.Content { // the running guest already has this content, so its record stays
		at.record.Instance, at.record.Created = old.live.Instance, old.live.Created
		at.record.Started, at.record.Heard = old.live.Started, old.live.Heard
	}
	subnets, bridges, err := d.networks(ctx, p)
	if err != nil {
		return err
	}
	at.bridges = bridges
	at.record.addressed(p.nics)
	if err := d.dropLeft(ctx, spec, p.domain); err != nil {
		return err
	}
	former, err := d.journaledDisks(p.domain, spec.ID)
	if err != nil {
		return err
	}
	if old != nil && old.config != nil {
		for i := range old.config.Disks {
			old.config.Disks[i].used = true
		}
		former = joined(slices.Concat(old.config.Disks, old.config.Leftover), former)
	}
	if at.record.Disks, err = d.disks(ctx, spec, p, former); err != nil {
		return err
	}
	for _, o := range former {
		if !slices.ContainsFunc(at.record.Disks, o.same) {
			at.record.Leftover = append(at.record.Leftover, o)
		}
	}
	if err := d.note(p.domain, spec, joined(at.record.Disks, at.record.Leftover)); err != nil {
		return err
	}
	if at.vnc != "" {
		if at.password, err = d.screenPassword(keep); err != nil {
			return err
		}
	}
	if p.seed != nil && old != nil && old.config != nil {
		p.seed.follow(old.config, at.record.Static)
	}
	if err := d.writeSeed(p, subnets, keep, &at.record, spec); err != nil {
		return err
	}
	if p.quota > 0 {
		at.record.CPU = &cpuFact{Millicores: p.quota, Unkept: d.quotas.unkept(f)}
	}
	write := func() error {
		xml, err := domainXML(p, at)
		if err != nil {
			return driver.Errorf(driver.InvalidSpecification, "define", "workload %q: %w", spec.ID, err)
		}
		release, err := d.hold(ctx, p.uuid) // a record write that is still in progress must not overwrite the new record
		if err != nil {
			return err
		}
		defer release()
		return d.hv.define(ctx, xml)
	}
	if err = write(); d.quotas.refused(f, err) && at.record.CPU != nil {
		at.record.CPU.Unkept = d.quotas.unkept(f)
		err = write()
	}
	return err
}

// networks looks up and starts the plan's networks. It returns their subnets, and which of the names
// are plain bridges.
func (d *Driver) networks(ctx context.Context, p *plan) (subnets map[string][]nocloud.Subnet, bridges map[string]bool, err error) {
	subnets, bridges = map[string][]nocloud.Subnet{}, map[string]bool{}
	for _, n := range p.nics {
		if _, known := subnets[n.Network]; known || bridges[n.Network] {
			continue
		}
		text, err := d.hv.network(ctx, n.Network)
		switch {
		case err == nil:
			if subnets[n.Network], err = hostcaps.Subnets(text); err != nil {
				return nil, nil, driver.Errorf(driver.RuntimeError, "network", "%s: %w", n.Network, err)
			}
		case !errors.Is(err, errAbsent):
			return nil, nil, err
		case d.hv.bridge(ctx, n.Network):
			bridges[n.Network] = true
		default:
			return nil, nil, driver.Errorf(driver.RuntimeResourceMissing, "network", "network %q: this node has neither a libvirt network (virsh net-list --all) nor a bridge (ip link) of that name", n.Network)
		}
	}
	return subnets, bridges, nil
}

// disks makes missing disks and returns the disks that the driver made. A disk that the driver made for
// this workload stays, unless the order names another image than the one from which the disk was made.
// The image of an existing disk is in the record in the domain's metadata or, after a failed creation, in
// the mark file beside the disk.
func (d *Driver) disks(ctx context.Context, spec driver.Spec, p *plan, former []ownDisk) ([]ownDisk, error) {
	var out []ownDisk
	for i, disk := range p.disks {
		if disk.network != nil || disk.attached {
			continue
		}
		var img *diskfile.Image
		if disk.image != "" {
			there, err := diskfile.Exists(disk.image)
			if err != nil {
				return nil, diskfile.Failed(err)
			}
			if !there {
				return nil, driver.Errorf(driver.InvalidImage, "disk", "image %s does not exist on this node", disk.image)
			}
			facts, err := diskfile.Inspect(ctx, disk.image, "")
			if err != nil {
				return nil, err
			}
			img = &facts
			if disk.sizeGB > 0 && disk.sizeGB*gib < img.Size {
				return nil, invalid("%s: %d GiB is less than the %d bytes of its image %s", describe(disk), disk.sizeGB, img.Size, disk.image)
			}
		}
		note := func(o ownDisk) error {
			return d.note(p.domain, spec, joined(append(slices.Clone(out), o), former))
		}
		if disk.pool != "" {
			o, err := d.poolDisk(ctx, disk, img, former, note)
			if err != nil {
				return nil, err
			}
			out, p.disks[i].volume = append(out, o), o.Volume
			continue
		}
		o, own, err := d.fileDisk(ctx, spec, disk, img, former, note)
		if err != nil {
			return nil, err
		}
		if own {
			out = append(out, o)
		}
	}
	return out, nil
}

// poolDisk makes the volume of a disk in a storage pool. Before that it calls note, which lists the disk in the
// journal of the domain's folder. If the workload already has a volume for this disk and image, poolDisk uses
// that volume, whatever its name is.
func (d *Driver) poolDisk(ctx context.Context, disk diskPlan, img *diskfile.Image, former []ownDisk, note func(ownDisk) error) (ownDisk, error) {
	was := slices.IndexFunc(former, func(f ownDisk) bool {
		return f.Pool == disk.pool && f.Device == disk.device && f.Format == disk.format && (f.Image == disk.image || disk.image == "")
	})
	o := ownDisk{Device: disk.device, Pool: disk.pool, Volume: disk.volume, Format: disk.format, Image: disk.image, SizeGB: disk.sizeGB}
	if was >= 0 {
		disk.volume = former[was].Volume
		o.Volume, o.Image = disk.volume, former[was].Image
	}
	format, capacity := "", disk.sizeGB*gib
	if img != nil {
		if disk.format != "qcow2" {
			return o, invalid("disk %s in pool %s: a disk that is backed by an image must be qcow2", disk.device, disk.pool)
		}
		format, capacity = img.Format, max(capacity, img.Size)
	}
	if capacity == 0 {
		return o, invalid("disk %s in pool %s: size_gb must be at least 1", disk.device, disk.pool)
	}
	xml, err := volumeXML(disk, capacity, format)
	if err != nil {
		return o, driver.Errorf(driver.InvalidSpecification, "disk", "%w", err)
	}
	if was >= 0 && former[was].used {
		return o, d.grow(ctx, o, 0) // a new volume would be empty, so only check that the old one exists
	}
	if err := note(o); err != nil {
		return o, err
	}
	// The volume's name is derived from the workload. So if a volume of this name exists, the driver made it
	// for this workload.
	return o, d.hv.volume(ctx, disk.pool, disk.volume, xml)
}

// grow enlarges an existing volume to at least size bytes.
func (d *Driver) grow(ctx context.Context, o ownDisk, size int64) error {
	err := d.hv.growVolume(ctx, o.Pool, o.Volume, size)
	if errors.Is(err, errAbsent) { // the volume or its pool does not exist
		return driver.Errorf(driver.StorageAttachFailed, "disk", "disk %s: volume %s does not exist any more, or pool %s is not on this node (virsh pool-list --all): check that the pool's storage is mounted; delete the workload only if the volume is lost: %w", o.Device, o.Volume, o.Pool, err)
	}
	return err
}

// fileDisk makes the file of a disk. Before that it calls note, which lists the disk in the journal of the
// domain's folder.
func (d *Driver) fileDisk(ctx context.Context, spec driver.Spec, disk diskPlan, img *diskfile.Image, former []ownDisk, note func(ownDisk) error) (ownDisk, bool, error) {
	o := ownDisk{Device: disk.device, Path: disk.path, Format: disk.format, Image: disk.image, SizeGB: disk.sizeGB}
	there, err := diskfile.Exists(disk.path)
	if err != nil {
		return o, false, diskfile.Failed(err)
	}
	was := slices.IndexFunc(former, func(f ownDisk) bool { return f.Path == disk.path && f.Pool == "" })
	ours := diskfile.Made(disk.path, spec.ClusterID, spec.ID)
	image, known := diskfile.MadeFrom(disk.path, spec.NodeID)
	format := ""
	if was >= 0 {
		f, waits := former[was], false
		ours = true
		if f.Staged { // after an interrupted update, the file at Path is still the disk of the old guest
			if waits, err = diskfile.Exists(disk.path + diskfile.StagedSuffix); err != nil {
				return o, false, diskfile.Failed(err)
			}
		}
		switch {
		case !waits:
			image, known, format = f.Image, !f.unsure, f.Format
		case f.Image == disk.image && f.Format == disk.format:
			o.Staged, o.Former = true, f.Former
			return o, true, nil
		default:
			format = f.Former
		}
	}
	switch {
	case disk.cdrom, there && !ours:
		if !there {
			return o, false, driver.Errorf(driver.InvalidImage, "disk", "%s does not exist on this node", describe(disk))
		}
		return o, false, nil
	case !there && disk.sizeGB == 0 && img == nil:
		return o, false, driver.Errorf(driver.InvalidImage, "disk", "%s does not exist on this node, and the disk has no size to create it with", describe(disk))
	case !there && was >= 0 && former[was].used && !diskfile.Made(disk.path, spec.ClusterID, spec.ID):
		// If a person had deleted the disk, its mark file would still exist. If both are missing, their file
		// system is probably not mounted. Do not make a new disk then, because it would be empty.
		return o, false, driver.Errorf(driver.StorageAttachFailed, "disk", "%s and its mark file do not exist any more: check that their file system is mounted; if they are lost, delete the workload or put a disk there", describe(disk))
	case !there:
		if err := os.MkdirAll(filepath.Dir(disk.path), 0o711); err != nil {
			return o, false, diskfile.Failed(err)
		}
		if err := note(o); err != nil {
			return o, false, err
		}
		// The mark file is written before the disk, because the driver treats a disk without a mark file as
		// foreign.
		mark := diskfile.Mark{Cluster: spec.ClusterID, Node: spec.NodeID, Workload: spec.ID, Image: disk.image}
		if err := mark.Write(disk.path); err != nil {
			return o, false, err
		}
		return o, true, diskfile.Make(ctx, disk.path, disk.format, disk.sizeGB*gib, img)
	}
	if known && image != disk.image && disk.image != "" {
		if err := note(o); err != nil {
			return o, false, err
		}
		o.Staged, o.Former = true, format
		return o, true, diskfile.Make(ctx, disk.path+diskfile.StagedSuffix, disk.format, disk.sizeGB*gib, img)
	}
	if known {
		o.Image = image // record the image of the disk even if this order names none: a later order may name it again
	}
	have, err := diskfile.Inspect(ctx, disk.path, format)
	if err != nil {
		return o, false, err
	}
	if have.Format != disk.format {
		return o, false, invalid("%s: it is %s and cannot become %s; remove the workload first, or name another path", describe(disk), have.Format, disk.format)
	}
	if disk.sizeGB > 0 && disk.sizeGB*gib < have.Size {
		return o, false, invalid("%s: it has %d bytes and cannot shrink to %d GiB", describe(disk), have.Size, disk.sizeGB)
	}
	if diskfile.Elsewhere(disk.path, spec.NodeID) {
		// The workload's previous node may still get an order to remove the disk. Because the new mark
		// file names this node, the previous node leaves the disk alone.
		mark := diskfile.Mark{Cluster: spec.ClusterID, Node: spec.NodeID, Workload: spec.ID, Image: image, Unsure: !known}
		return o, true, mark.Write(disk.path)
	}
	return o, true, nil
}

// writeSeed writes the NoCloud image, the input of cloud-init, to a file named after its content.
func (d *Driver) writeSeed(p *plan, subnets map[string][]nocloud.Subnet, keep string, r *record, spec driver.Spec) error {
	if p.seed == nil {
		return nil
	}
	network := p.seed.network
	if network == "" {
		var err error
		if network, err = nocloud.NetworkConfig(p.nics, subnets); err != nil {
			return badSeed("network-config: %v", err)
		}
	}
	iso, sum, err := nocloud.Image(p.seed.files(network))
	if err != nil {
		return driver.Errorf(driver.StorageProvisionFailed, "cloud-init", "%w", err)
	}
	path := filepath.Join(keep, "cloud-init-"+tag(spec.Content)+".iso")
	r.Seed = &seedFact{Path: path, Checksum: sum, Size: int64(len(iso)), At: time.Now().UTC(), Addressed: !p.seed.former, Other: p.seed.other}
	return diskfile.Write(path, iso)
}

// tidy completes a replacement after the old guest has stopped. It renames staged disks to their final
// names and removes disks that only the old definition used. The domain must be off.
func (d *Driver) tidy(ctx context.Context, in *instance) error {
	r := in.config
	if r == nil {
		return nil
	}
	changed := len(r.Leftover) > 0
	if err := d.removeDisks(ctx, r.Leftover); err != nil {
		return err
	}
	for i, o := range r.Disks {
		if o.Staged {
			err := diskfile.Move(o.Path+diskfile.StagedSuffix, o.Path)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // the staged file is absent if an earlier call has already moved it
				return err
			}
			mark := diskfile.Mark{Cluster: d.identity.ClusterID, Node: d.identity.NodeID, Workload: driver.ID(r.Labels[driver.LabelWorkload]), Image: o.Image}
			if err := mark.Write(o.Path); err != nil {
				return err
			}
			r.Disks[i].Staged, r.Disks[i].Former, changed = false, "", true
		} else if o.Path != "" { // remove the staged disk of an update that a later order reverted
			if err := diskfile.Remove(o.Path + diskfile.StagedSuffix); err != nil {
				return err
			}
		}
		if o.Pool != "" { // grow is called even if the size stays, because it starts the pool of the volume
			if err := d.grow(ctx, o, o.SizeGB*gib); err != nil {
				return err
			}
		}
		if o.Path != "" && o.SizeGB > 0 {
			if err := diskfile.Grow(ctx, o.Path, o.Format, o.SizeGB*gib); err != nil {
				return err
			}
		}
	}
	seed := ""
	if r.Seed != nil {
		seed = r.Seed.Path
	}
	keep := d.at.keep(in.name)
	if err := diskfile.RemoveOthers(keep, seed, r.Console, ownerFile, diskJournal, screenFile); err != nil {
		return err
	}
	if !changed {
		return nil
	}
	if err := writeDiskJournal(keep, r.Disks); err != nil {
		return err
	}
	return d.change(ctx, in, func(r *record) {
		r.Leftover = nil
		for i := range r.Disks {
			r.Disks[i].Staged, r.Disks[i].Former = false, ""
		}
	})
}

// settle starts or stops a domain whose definition is up to date, as running demands.
func (d *Driver) settle(ctx context.Context, in *instance, running bool) error {
	if !running {
		if !in.active {
			return nil
		}
		return d.stop(ctx, in, d.opt.StopGrace)
	}
	if in.active {
		if in.state == statePaused {
			return d.hv.resume(ctx, in.uuid)
		}
		if in.state != stateCrashed && in.state != stateShutdown {
			return nil
		}
		if err := d.stop(ctx, in, d.opt.StopGrace); err != nil {
			return err
		}
		in.active = false
	}
	// Listen for ARP before the start: a guest may announce its address only once, in its first second.
	d.listen(in.config.asked(interfacesOf(in.domain.config)))
	before := time.Time{}
	finished, end := time.Time{}, ""
	err := d.change(ctx, in, func(r *record) {
		before, finished, end = r.Started, r.Finished, r.End
		r.Started, r.Finished, r.End, r.Heard = time.Now().UTC(), time.Time{}, "", nil
	})
	if err != nil {
		return err
	}
	if err := d.hv.start(ctx, in.uuid); err != nil {
		// Undo the start time even if ctx is cancelled: the record must not show a start that did not happen.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return errors.Join(err, d.change(undo, in, func(r *record) { r.Started, r.Finished, r.End = before, finished, end }))
	}
	return nil
}

// stop asks the guest to shut down, powers it off after grace, and records when and how it ended.
func (d *Driver) stop(ctx context.Context, in *instance, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	const (
		look = 50 * time.Millisecond
		// A booting guest ignores the ACPI power button, so the driver presses it again and again.
		repeat = 2 * time.Second
	)
	var asked time.Time
	for time.Now().Before(deadline) && in.state != statePaused && in.state != stateCrashed {
		if time.Since(asked) >= repeat {
			asked = time.Now()
			if err := d.hv.shutdown(ctx, in.uuid); err != nil && !errors.Is(err, errAbsent) {
				if driver.ClassOf(err) == driver.RuntimeUnhealthy {
					return err
				}
				break // libvirt could not send the request to the guest
			}
		}
		now, err := d.reload(ctx, in.name)
		if errors.Is(err, errAbsent) {
			return nil
		}
		if err != nil {
			return err
		}
		if !now.active {
			return d.ended(ctx, now, "")
		}
		in.state = now.state
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.hv.destroy(ctx, in.uuid); err != nil && !errors.Is(err, errAbsent) {
		return err
	}
	now, err := d.reload(ctx, in.name)
	if errors.Is(err, errAbsent) {
		return nil
	}
	if err != nil {
		return err
	}
	if now.active {
		return driver.Errorf(driver.RuntimeError, "stop", "domain %s is still active after it was destroyed", in.name)
	}
	return d.ended(ctx, now, "destroyed")
}

// ended records when and how a guest ended. For each run of the guest only the first call records something;
// further calls do nothing.
func (d *Driver) ended(ctx context.Context, in *instance, how string) error {
	if in.config == nil || !in.config.runs() {
		return nil
	}
	began, seen := in.config.Started, time.Now().UTC()
	if how == "" {
		how = offReason(in.domain)
	}
	return d.change(ctx, in, func(r *record) {
		if r.runs() && r.Started.Equal(began) {
			r.Finished, r.End = seen, how
		}
	})
}

func offReason(d domain) string {
	if d.reason < 0 || d.reason >= len(offReasons) {
		return "unknown"
	}
	return offReasons[d.reason]
}

// Halt implements driver.Driver. The guest may take grace to shut down, or Options.StopGrace for
// driver.OwnGrace, because the specification of a virtual machine contains no grace period.
func (d *Driver) Halt(ctx context.Context, id driver.ID, grace time.Duration) error {
	if grace == driver.OwnGrace {
		grace = d.opt.StopGrace
	}
	in, err := d.mine(ctx, id)
	if err != nil || in == nil || !in.active {
		return err
	}
	return d.stop(ctx, in, grace)
}
