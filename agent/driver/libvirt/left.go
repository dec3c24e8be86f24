package libvirt

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// A workload that moves to another node leaves its disks here: they may be the only copy of its data. The
// journal (diskJournal), a file in the domain's folder, still lists these disks, and leftFile contains the time
// of the move and the namespace. When the time GarbageQuery.LeftFor has passed since the move, the disks are
// garbage. If the workload returns earlier in the same namespace, it uses them again.

// leftFile is the file in a domain's folder which records that the workload left its disks here. It has two
// lines: the time of the move and the namespace, which is unknownNamespace if the driver does not know it.
const leftFile = "persys-left"

// unknownNamespace is no valid name of a namespace. If the namespace of left disks is unknown, any workload
// with the same id may use them.
const unknownNamespace = "?"

// leave records in the domain's folder that a workload moved to another node and left the disks in own on
// this node. in is nil if there is no domain.
func (d *Driver) leave(in *instance, name string, id driver.ID, own []ownDisk) error {
	keep := d.at.keep(name)
	if _, _, left := d.leftSince(name); len(own) == 0 || left && in == nil {
		return nil
	}
	spec := driver.Spec{ID: id, ClusterID: d.identity.ClusterID, NodeID: d.identity.NodeID}
	namespace := "" // legacy v1 agents, whose domains have no config, know only the default namespace
	switch {
	case in == nil:
		_, namespace, _ = d.ownerOf(name)
		namespace = cmp.Or(namespace, unknownNamespace)
	case in.config != nil:
		namespace = in.config.Labels[driver.LabelNamespace]
	}
	if namespace != unknownNamespace {
		spec.Body = &agentv1.WorkloadSpec{Namespace: namespace}
	}
	if err := d.note(name, spec, own); err != nil {
		return err
	}
	d.opt.Logger.Info("kept the disks of a workload that moved to another node", "workload", string(id), "disks", paths(own))
	return diskfile.Write(filepath.Join(keep, leftFile), []byte(time.Now().UTC().Format(time.RFC3339)+"\n"+namespace+"\n"))
}

func paths(disks []ownDisk) string {
	var out []string
	for _, o := range disks {
		if o.Pool != "" {
			out = append(out, o.Pool+"/"+o.Volume)
		} else {
			out = append(out, o.Path)
		}
	}
	return strings.Join(out, ", ")
}

// leftSince reads the leftFile of a domain's folder: when a workload left its disks here, and its namespace.
// left is false if there is no such file.
func (d *Driver) leftSince(name string) (at time.Time, namespace string, left bool) {
	raw, err := os.ReadFile(filepath.Join(d.at.keep(name), leftFile))
	if err != nil {
		return time.Time{}, "", false
	}
	first, second, _ := strings.Cut(string(raw), "\n")
	if at, err = time.Parse(time.RFC3339, first); err != nil {
		return time.Time{}, "", false // a power failure may have truncated the file
	}
	return at, strings.TrimSpace(second), true
}

// dropLeft deletes disks that an earlier workload with the id of spec but of another namespace left here.
// The earlier workload must have been deleted, because its id is in use again.
func (d *Driver) dropLeft(ctx context.Context, spec driver.Spec, name string) error {
	_, namespace, left := d.leftSince(name)
	if !left || namespace == unknownNamespace || driver.SameNamespace(namespace, spec.Body.GetNamespace()) {
		return nil
	}
	own, err := d.leftBehind(ctx, name, spec.ID)
	if err != nil {
		return err
	}
	if err := d.delete(ctx, name, own); err != nil {
		return err
	}
	return d.clear(name)
}

// delete deletes the disks in own, which belong to a domain, and the leftFile in the domain's
// folder.
func (d *Driver) delete(ctx context.Context, name string, own []ownDisk) error {
	if err := d.removeDisks(ctx, own); err != nil {
		return err
	}
	return diskfile.Remove(filepath.Join(d.at.keep(name), leftFile))
}

// clear removes a domain's folder. If the workload left disks here, it keeps those files of the folder that
// list the disks.
func (d *Driver) clear(name string) error {
	keep := d.at.keep(name)
	if _, _, left := d.leftSince(name); left {
		return diskfile.RemoveOthers(keep, ownerFile, diskJournal, leftFile)
	}
	return diskfile.Failed(os.RemoveAll(keep))
}

// leftDisks returns, as garbage, the disks that a workload left on this node when it moved. It returns none
// if the workload moved less than q.LeftFor ago.
func (d *Driver) leftDisks(ctx context.Context, name string, id driver.ID, q driver.GarbageQuery) ([]driver.Garbage, error) {
	at, _, _ := d.leftSince(name)
	if time.Since(at) < q.LeftFor {
		return nil, nil
	}
	own, err := d.leftBehind(ctx, name, id)
	if err != nil {
		return nil, err
	}
	var bytes int64
	for _, o := range own {
		if info, err := os.Stat(o.Path); o.Path != "" && err == nil {
			bytes += info.Size()
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) && o.Path != "" {
			return nil, diskfile.Failed(err)
		}
	}
	return []driver.Garbage{{Kind: driver.LeftDisk, Name: name, Workload: id, Bytes: bytes,
		Reason: "disks of a machine that moved to another node " + time.Since(at).Round(time.Second).String() + " ago: " + paths(own)}}, nil
}

// collectLeft deletes the disks that a workload left here when it moved.
func (d *Driver) collectLeft(ctx context.Context, name string, id driver.ID) error {
	if _, _, left := d.leftSince(name); !left {
		return nil // the workload has returned and uses its disks again
	}
	return d.forgotten(ctx, name, func() error {
		own, err := d.leftBehind(ctx, name, id)
		if err != nil {
			return err
		}
		return d.delete(ctx, name, own)
	})
}
