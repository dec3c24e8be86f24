package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
)

var _ driver.Collector = (*Driver)(nil)

// ownerFile is the file in a domain's folder that names its owner. A folder without it is never removed.
const ownerFile = "persys-owner"

// keepSuffix is the suffix of the name of each domain's folder; the name begins with the name of the domain.
const keepSuffix = ".persys"

// owner returns the lines of an ownerFile: the time, the cluster, the node, the workload and its namespace. The
// last line is missing if spec has no Body, because then the namespace is not known.
func owner(spec driver.Spec) string {
	lines := time.Now().UTC().Format(time.RFC3339) + "\n" + spec.ClusterID + "\n" + spec.NodeID + "\n" + string(spec.ID) + "\n"
	if spec.Body != nil {
		lines += cmp.Or(spec.Body.GetNamespace(), driver.DefaultNamespace) + "\n"
	}
	return lines
}

// keptFor returns the workload for which this node keeps a domain's folder. It returns false if the folder is
// not ours or is a symbolic link.
func (d *Driver) keptFor(domain string) (driver.ID, bool) {
	id, _, ours := d.ownerOf(domain)
	return id, ours
}

// ownerOf returns the same as keptFor and also the workload's namespace, or "" if the ownerFile names no
// namespace.
func (d *Driver) ownerOf(domain string) (id driver.ID, namespace string, ours bool) {
	dir := d.at.keep(domain)
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return "", "", false
	}
	raw, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if err != nil {
		return "", "", false
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) < 4 || len(lines) > 5 || lines[1] != d.identity.ClusterID || lines[2] != d.identity.NodeID || lines[3] == "" {
		return "", "", false
	}
	if len(lines) == 5 {
		namespace = lines[4]
	}
	return driver.ID(lines[3]), namespace, true
}

// Garbage implements driver.Collector. It finds domains for which the agent has no order, the folders with
// cloud-init and console files of deleted domains, and disks of workloads that moved to another node long ago.
func (d *Driver) Garbage(ctx context.Context, q driver.GarbageQuery) ([]driver.Garbage, error) {
	all, err := d.hv.domains(ctx)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	var out []driver.Garbage
	for _, dom := range all {
		there[dom.name] = true
		in := &instance{}
		in.read(dom)
		// Domains whose metadata lacks our record are never garbage: nothing in libvirt proves that they
		// are ours, only the record in the agent's store says so.
		if !dom.persistent || in.config == nil || d.of(in.config, dom.name) != driver.Owned {
			continue
		}
		id := driver.ID(in.config.Labels[driver.LabelWorkload])
		if !q.Wanted(id) && !q.Busy(id) && time.Since(in.config.Created) >= q.Settled {
			out = append(out, driver.Garbage{Kind: driver.Orphan, Name: dom.name, Workload: id,
				Reason: fmt.Sprintf("machine %s (%s) of a workload for which this agent has no order", dom.name, stateWord(dom.state))})
		}
	}
	entries, err := os.ReadDir(d.opt.Images)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, diskfile.Failed(err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), keepSuffix)
		if !ok || there[name] {
			continue
		}
		id, ours := d.keptFor(name)
		if !ours || q.Wanted(id) || q.Busy(id) {
			continue
		}
		if _, _, left := d.leftSince(name); left {
			disks, err := d.leftDisks(ctx, name, id, q)
			if err != nil {
				return nil, err
			}
			out = append(out, disks...)
			continue
		}
		bytes, newest, err := folder(d.at.keep(name))
		if err != nil || time.Since(newest) < q.Settled {
			continue
		}
		out = append(out, driver.Garbage{Kind: driver.ISO, Name: name, Workload: id, Bytes: bytes,
			Reason: "cloud-init and console log of a machine that no longer exists"})
	}
	slices.SortFunc(out, func(a, b driver.Garbage) int {
		if c := strings.Compare(string(a.Kind), string(b.Kind)); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

// folder returns the total size of the files in dir and the time of the newest change to one of them.
func folder(dir string) (bytes int64, newest time.Time, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, time.Time{}, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, time.Time{}, err // a file was removed during the walk
		}
		bytes += info.Size()
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return bytes, newest, nil
}

// Collect implements driver.Collector.
func (d *Driver) Collect(ctx context.Context, g driver.Garbage) error {
	switch g.Kind {
	case driver.Orphan:
		return d.Leave(ctx, g.Workload, false) // the agent has no order for the workload, but another node may have one
	case driver.ISO:
		if id, ours := d.keptFor(g.Name); !ours || id != g.Workload {
			return nil // the folder is no longer garbage
		}
		return d.forgotten(ctx, g.Name, nil)
	case driver.LeftDisk:
		if id, ours := d.keptFor(g.Name); !ours || id != g.Workload {
			return nil
		}
		return d.collectLeft(ctx, g.Name, g.Workload)
	}
	return driver.Errorf(driver.InvalidConfiguration, "collect", "the libvirt driver cannot remove garbage of kind %s", g.Kind)
}
