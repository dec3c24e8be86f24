package compose

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/persys/compute/agent/driver"
)

// record is the content of the record file in a project's folder. It stores facts about a stack that container
// labels cannot store, such as the content of the stack as a whole. It holds no secrets.
type record struct {
	Workload   driver.ID `json:"workload"`
	ClusterID  string    `json:"cluster_id"`
	NodeID     string    `json:"node_id"`
	Revision   string    `json:"revision"`
	Content    string    `json:"content"`
	Generation string    `json:"generation"`
	// Commit is the commit of the stack's Git source. Repository is the URL of that source without
	// credentials.
	Commit     string `json:"commit,omitempty"`
	Repository string `json:"repository,omitempty"`
	// Services is the expected number of containers of each service.
	Services map[string]int `json:"services"`
	Complete bool           `json:"complete"`
	// Halted are the services that were stopped for a restart of unhealthy services, and not started since.
	Halted []string `json:"halted,omitempty"`
	// LeftOut describes the options of the stack that the driver left out, because the engine did not support
	// them when the stack was created.
	LeftOut []string `json:"left_out,omitempty"`
	// Left means that the stack moved to another node, and that its files under relative paths were
	// kept on this node.
	Left bool `json:"left,omitempty"`
}

// recordName is the name of the record file in the project's folder.
const recordName = "stack.json"

type cachedRecord struct {
	changed time.Time
	size    int64
	record  *record
}

func (d *Driver) folder(project string) string { return filepath.Join(d.opt.Dir, project) }

// recordOf returns the record in a project's folder. It returns nil without error if the folder has no record
// or the record of another node. A damaged record is treated as missing: the next Ensure writes a new one.
func (d *Driver) recordOf(project string) (*record, error) {
	path := filepath.Join(d.folder(project), recordName)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d.recordsMu.Lock()
	defer d.recordsMu.Unlock()
	if c, ok := d.records[project]; ok && c.changed.Equal(info.ModTime()) && c.size == info.Size() {
		return c.record, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(raw, r); err != nil {
		d.log.Warn("the record of a Compose project cannot be read; the next change writes it again", "project", project, "error", err)
		r = nil
	} else if r.ClusterID != d.opt.ClusterID || r.NodeID != d.opt.NodeID {
		r = nil
	}
	d.records[project] = cachedRecord{info.ModTime(), info.Size(), r}
	return r, nil
}

// claim writes a record that names the workload to which a project's folder belongs, before anything else is
// stored in the folder. A stack that never starts has no containers, so only the record names its owner. An
// existing record stays, even if it names another owner.
func (d *Driver) claim(project string, spec driver.Spec) error {
	if _, err := os.Stat(filepath.Join(d.folder(project), recordName)); err == nil {
		return nil
	}
	return d.note(project, record{Workload: spec.ID, ClusterID: spec.ClusterID, NodeID: spec.NodeID})
}

// note replaces a record atomically.
func (d *Driver) note(project string, r record) error {
	if err := d.write(project, r); err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: fmt.Errorf("the project's record: %w", err)}
	}
	return nil
}

func (d *Driver) write(project string, r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.folder(project), 0o700); err != nil {
		return err
	}
	path := filepath.Join(d.folder(project), recordName)
	f, err := os.CreateTemp(d.folder(project), recordName+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = driver.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d.recordsMu.Lock()
	delete(d.records, project) // two writes may give the file the same time and size, so drop the cached record
	d.recordsMu.Unlock()
	return nil
}

// erase removes a project's folder. If files is false, erase keeps the files under relative paths of an inline
// stack, if there are any, and a record that names the workload to which they belong.
func (d *Driver) erase(project string, id driver.ID, files bool) error {
	folder := d.folder(project)
	_ = os.Remove(filepath.Join(folder, inlineDir)) // os.Remove leaves the folder if it has files
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	left := !files && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == inlineDir })
	if left {
		if err := d.write(project, record{Workload: id, ClusterID: d.opt.ClusterID, NodeID: d.opt.NodeID, Left: true}); err != nil {
			return err
		}
	}
	var errs []error
	for _, e := range entries { // entries are sorted by name, so the record is removed after the files that it names
		if !left || e.Name() != inlineDir && e.Name() != recordName {
			errs = append(errs, os.RemoveAll(filepath.Join(folder, e.Name())))
		}
	}
	if !left {
		errs = append(errs, os.RemoveAll(folder))
	}
	d.recordsMu.Lock()
	delete(d.records, project)
	d.recordsMu.Unlock()
	return errors.Join(errs...)
}
