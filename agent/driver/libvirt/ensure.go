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

// instance is the domain of a workload, with our element in both descriptions.
type instance struct {
	domain
	config, live *record // live is nil while the domain is off
}

func (in *instance) read(d domain) {
	in.domain = d
	in.config, in.live = readRecord(d.config), nil
	if d.active {
		in.live = readRecord(d.live)
	}
}

// find looks for a workload's domain under its two possible names. It also returns the name for a new
// domain: the workload's, or one with the node's name appended if a sibling agent's domain holds the first.
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
		case driver.Ours, driver.Claimed:
			if in.config == nil || in.config.Labels[driver.LabelWorkload] == string(id) {
				return in, name, nil
			}
		case driver.Sibling:
			continue
		}
		return nil, name, &strange{name: name, record: in.config}
	}
	return nil, "", driver.Errorf(driver.InvalidConfiguration, "define", "every name of workload %q is held by another agent of the cluster on this hypervisor", id)
}

// strange is the error that a domain of a stranger has the name.
type strange struct {
	name   string
	record *record
}

func (e *strange) Error() string {
	who := "it has no mark of ours"
	if e.record != nil {
		who = "it belongs to cluster " + e.record.Labels[driver.LabelCluster]
	}
	return "libvirt domain " + e.name + " exists already and " + who + "; rename or undefine that domain (virsh domrename), or use another workload id"
}

// mine is find for callers that ignore a stranger's domain.
func (d *Driver) mine(ctx context.Context, id driver.ID) (*instance, error) {
	in, _, err := d.find(ctx, id)
	var other *strange
	if errors.As(err, &other) {
		return nil, nil
	}
	return in, err
}

// contentOf returns the content of a description. For a domain of a legacy v1 agent the store knows it.
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
		return driver.Errorf(driver.InvalidConfiguration, "define", "workload %q: %w", spec.ID, other)
	}
	if err != nil {
		return err
	}
	// The specification must be valid even if nothing has to change.
	p, err := makePlan(spec, name, d.at)
	if err != nil {
		return err
	}
	fits := in != nil && in.persistent && d.contentOf(in.config, in, spec) == spec.Content
	if fits && spec.Running && !in.active && !d.whole(in) {
		fits = false // a disk that we made was deleted; make it again
	}
	if !fits {
		if err := d.define(ctx, spec, p, in); err != nil {
			return err
		}
		if in, err = d.again(ctx, name); err != nil {
			return err
		}
	}
	if in.active && d.contentOf(in.live, in, spec) != spec.Content {
		if err := d.stop(ctx, in, d.opt.StopGrace); err != nil {
			return err
		}
		if in, err = d.again(ctx, name); err != nil {
			return err
		}
	}
	if !in.active {
		if err := d.tidy(ctx, in); err != nil {
			return err
		}
	}
	if fits && spec.Running && !in.active { // define has checked the rest; the domain may have been started since
		if _, _, err := d.networks(ctx, p); err != nil {
			return err
		}
	}
	cause := d.settle(ctx, in, spec.Running)
	var no *noQuota
	if !errors.As(cause, &no) {
		return cause
	}
	// libvirt refused the CPU quota: start without it and report that.
	f, err := d.hv.facts(ctx)
	if err != nil {
		return err
	}
	d.quotas.refused(f, cause)
	if err := d.define(ctx, spec, p, in); err != nil {
		return err
	}
	if in, err = d.again(ctx, name); err != nil {
		return err
	}
	return d.settle(ctx, in, spec.Running)
}

func (d *Driver) again(ctx context.Context, name string) (*instance, error) {
	dom, err := d.hv.domain(ctx, name)
	if err != nil {
		return nil, err
	}
	in := &instance{}
	in.read(*dom)
	return in, nil
}

// whole reports whether the files that we made for an instance still exist.
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

// define prepares everything that a plan needs and defines the domain, replacing an old definition.
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
		p.uuid = old.uuid // also for a domain that a legacy v1 agent made
	}
	var bytes [6]byte
	_, _ = rand.Read(bytes[:])
	keep := d.at.keep(p.domain)
	at.record = record{
		Labels:   driver.Labels(driver.VM, spec, spec.Body.GetVm().GetMetadata()),
		Instance: hex.EncodeToString(bytes[:]), Created: time.Now().UTC(),
		Console: filepath.Join(keep, "console-"+tag(spec.Content)+".log"),
	}
	if old != nil && old.live != nil && old.live.Labels[driver.LabelContent] == spec.Content { // the running guest has this content
		at.record.Instance, at.record.Created = old.live.Instance, old.live.Created
		at.record.Started, at.record.Heard = old.live.Started, old.live.Heard
	}
	subnets, bridges, err := d.networks(ctx, p)
	if err != nil {
		return err
	}
	at.bridges = bridges
	at.record.addressed(p.nics)
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
		release, err := d.hold(ctx, p.uuid) // a late write of the former record must not overwrite the new one
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

// networks looks up and starts the plan's networks, and returns which of them are plain bridges.
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
			return nil, nil, driver.Errorf(driver.InvalidConfiguration, "network", "network %q: this node has neither a libvirt network (virsh net-list --all) nor a bridge (ip link) of that name", n.Network)
		}
	}
	return subnets, bridges, nil
}

// disks makes missing disks and returns the disks that are ours. An existing disk that we made for this
// workload stays as it is, unless the image differs. The record names the image of a disk; after a failed
// creation, the disk's mark does.
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

// poolDisk calls note before it makes a volume. A volume that this workload had for the disk, made from
// the same image, stays, whatever its name.
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
			return o, invalid("disk %s in pool %s: over an image it must be qcow2", disk.device, disk.pool)
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
		return o, d.grow(ctx, o, 0) // making it again would replace it by an empty one
	}
	if err := note(o); err != nil {
		return o, err
	}
	// The name is unique to this workload, so an existing volume was made for it.
	return o, d.hv.volume(ctx, disk.pool, disk.volume, xml)
}

// grow enlarges an existing volume to at least size bytes.
func (d *Driver) grow(ctx context.Context, o ownDisk, size int64) error {
	err := d.hv.growVolume(ctx, o.Pool, o.Volume, size)
	if errors.Is(err, errAbsent) { // the volume or its pool
		return driver.Errorf(driver.StorageAttachFailed, "disk", "disk %s: volume %s does not exist any more, or pool %s is not on this node (virsh pool-list --all): check that the pool's storage is mounted; delete the workload only if the volume is lost: %w", o.Device, o.Volume, o.Pool, err)
	}
	return err
}

// fileDisk calls note before it makes a file.
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
		if f.Staged { // after an interrupted update, the file at Path is still the former guest's disk
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
		// Deleting a disk leaves its mark file. If both are missing, the file system is probably not mounted:
		// making the disk again would replace it by an empty one.
		return o, false, driver.Errorf(driver.StorageAttachFailed, "disk", "%s and its mark file do not exist any more: check that their file system is mounted; if they are lost, delete the workload or put a disk there", describe(disk))
	case !there:
		if err := os.MkdirAll(filepath.Dir(disk.path), 0o711); err != nil {
			return o, false, diskfile.Failed(err)
		}
		if err := note(o); err != nil {
			return o, false, err
		}
		// The mark is written first: a disk without a mark counts as a stranger's.
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
		o.Image = image // keep the image even if this order names none: a later order may name it again
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
		// The workload was on another node, which may still be ordered to remove its files.
		mark := diskfile.Mark{Cluster: spec.ClusterID, Node: spec.NodeID, Workload: spec.ID, Image: image, Unsure: !known}
		return o, true, mark.Write(disk.path)
	}
	return o, true, nil
}

// writeSeed writes the NoCloud image under a name derived from its content.
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

// tidy completes a replacement after the old guest has stopped: it puts staged disks in place and
// removes disks that only the old definition used. The domain is off.
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
			if err != nil && !errors.Is(err, os.ErrNotExist) { // absent: an earlier call did it
				return err
			}
			mark := diskfile.Mark{Cluster: d.identity.ClusterID, Node: d.identity.NodeID, Workload: driver.ID(r.Labels[driver.LabelWorkload]), Image: o.Image}
			if err := mark.Write(o.Path); err != nil {
				return err
			}
			r.Disks[i].Staged, r.Disks[i].Former, changed = false, "", true
		} else if o.Path != "" { // made by an update that was reverted
			if err := diskfile.Remove(o.Path + diskfile.StagedSuffix); err != nil {
				return err
			}
		}
		if o.Pool != "" { // growing starts the pool
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
	if err := diskfile.RemoveOthers(keep, seed, r.Console, ownerFile, diskJournal); err != nil {
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

// removeDisks deletes the disks, except those that another node has taken over.
func (d *Driver) removeDisks(ctx context.Context, disks []ownDisk) error {
	for _, o := range disks {
		if o.Pool != "" {
			if err := d.hv.removeVolume(ctx, o.Pool, o.Volume); err != nil {
				return err
			}
			continue
		}
		if diskfile.Elsewhere(o.Path, d.identity.NodeID) {
			continue
		}
		// The mark goes last: it proves that the disk was ours.
		for _, f := range []string{o.Path, o.Path + diskfile.PartSuffix, o.Path + diskfile.StagedSuffix, o.Path + diskfile.MarkSuffix} {
			if err := diskfile.Remove(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle starts or stops the domain.
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
	// A guest may announce its address only once, in its first second.
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
		// Undo even if ctx is cancelled: the record must not show a start that did not happen.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return errors.Join(err, d.change(undo, in, func(r *record) { r.Started, r.Finished, r.End = before, finished, end }))
	}
	return nil
}

// stop asks the guest to shut down and powers it off after grace. It records the end.
func (d *Driver) stop(ctx context.Context, in *instance, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	const (
		look = 50 * time.Millisecond
		// A booting guest ignores the ACPI power button, so it is pressed again.
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
				break // the guest cannot be asked
			}
		}
		now, err := d.again(ctx, in.name)
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
	now, err := d.again(ctx, in.name)
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

// ended records when and how a guest ended, once.
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

// Halt implements driver.Driver.
func (d *Driver) Halt(ctx context.Context, id driver.ID, grace time.Duration) error {
	in, err := d.mine(ctx, id)
	if err != nil || in == nil || !in.active {
		return err
	}
	return d.stop(ctx, in, grace)
}

// Remove implements driver.Driver. It deletes the disks that we made and no others. Files go before the
// domain, because the domain's record lists them.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error { return d.remove(ctx, id, false) }

// Leave implements driver.Leaver. A virtual machine has disks and no engine volumes.
func (d *Driver) Leave(ctx context.Context, id driver.ID, _ bool) error {
	return d.remove(ctx, id, true)
}

func (d *Driver) remove(ctx context.Context, id driver.ID, elsewhere bool) error {
	in, err := d.mine(ctx, id)
	if err != nil {
		return err
	}
	if in == nil {
		// Remove leftovers of an interrupted creation; only this workload uses these names.
		for _, name := range []string{string(id), string(id) + "--" + d.opt.NodeID} {
			if err := d.forgotten(ctx, name, id); err != nil {
				return err
			}
		}
		return nil
	}
	if in.active {
		if err := d.stop(ctx, in, d.opt.StopGrace); err != nil {
			return err
		}
	}
	own := []ownDisk{}
	if r := in.config; r != nil {
		own = append(append(own, r.Disks...), r.Leftover...)
	} else {
		own = d.legacyDisks(in)
	}
	if elsewhere {
		if own, err = d.local(ctx, own); err != nil {
			return err
		}
	}
	noted, err := d.leftBehind(ctx, in.name, id)
	if err != nil {
		return err
	}
	if err := d.removeDisks(ctx, joined(own, noted)); err != nil {
		return err
	}
	if err := os.RemoveAll(d.at.keep(in.name)); err != nil {
		return diskfile.Failed(err)
	}
	if err = d.hv.undefine(ctx, in.uuid); errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

// forgotten removes a domain's folder, unless a domain of that name exists. For a removed workload it
// also deletes the disks that the folder's journal lists.
func (d *Driver) forgotten(ctx context.Context, name string, removed driver.ID) error {
	keep := d.at.keep(name)
	if there, err := diskfile.Exists(keep); err != nil || !there {
		return diskfile.Failed(err)
	}
	if _, err := d.hv.domain(ctx, name); !errors.Is(err, errAbsent) {
		return err
	}
	if removed != "" {
		disks, err := d.leftBehind(ctx, name, removed)
		if err != nil {
			return err
		}
		if err := d.removeDisks(ctx, disks); err != nil {
			return err
		}
	}
	return diskfile.Failed(os.RemoveAll(keep))
}
