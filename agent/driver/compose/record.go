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

// record is what labels cannot say of a stack; see the package comment. It holds no secret.
type record struct {
	Workload   driver.ID `json:"workload"`
	ClusterID  string    `json:"cluster_id"`
	NodeID     string    `json:"node_id"`
	Revision   string    `json:"revision"`
	Content    string    `json:"content"`
	Generation string    `json:"generation"`
	// Commit is that of the Git source; Repository is its address without credentials.
	Commit     string `json:"commit,omitempty"`
	Repository string `json:"repository,omitempty"`
	// Services is how many containers each service has.
	Services map[string]int `json:"services"`
	Complete bool           `json:"complete"`
	// Left: the stack has gone, what it kept below relative paths is here.
	Left bool `json:"left,omitempty"`
}

// recordName is beside the stack's own files, never among them.
const recordName = "stack.json"

type cachedRecord struct {
	changed time.Time
	size    int64
	record  *record
}

func (d *Driver) folder(project string) string { return filepath.Join(d.opt.Dir, project) }

// recordOf returns nil without error if there is none, or none of this node's. A damaged one counts
// as none: the next Ensure writes it anew.
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
		d.log.Warn("the record of a Compose project cannot be read; it is written anew with the next change", "project", project, "error", err)
		r = nil
	} else if r.ClusterID != d.opt.ClusterID || r.NodeID != d.opt.NodeID {
		r = nil
	}
	d.records[project] = cachedRecord{info.ModTime(), info.Size(), r}
	return r, nil
}

// claim writes that a project's folder is a workload's, before anything else is put there: a stack that
// never comes up has no containers to tell whose it is. A record that is there stays, whosever it is.
func (d *Driver) claim(project string, spec driver.Spec) error {
	if _, err := os.Stat(filepath.Join(d.folder(project), recordName)); err == nil {
		return nil
	}
	return d.note(project, record{Workload: spec.ID, ClusterID: spec.ClusterID, NodeID: spec.NodeID})
}

// note replaces a record as one step.
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
	delete(d.records, project) // two writes within the clock's grain look alike
	d.recordsMu.Unlock()
	return nil
}

// erase removes a project's folder. Without files it leaves what is there for the relative paths of an
// inline stack, if anything is, and whose it is.
func (d *Driver) erase(project string, id driver.ID, files bool) error {
	folder := d.folder(project)
	_ = os.Remove(filepath.Join(folder, inlineDir)) // which fails if anything is in it
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
	for _, e := range entries { // by name: the record after what it names
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
