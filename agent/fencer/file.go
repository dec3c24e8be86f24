package fencer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/persys/compute/agent/fencer/lease"
)

// The names of the files in a fencer's folder.
const (
	leaseFile  = "lease.json"
	nextLeases = leaseFile + ".*.new" // names of lease files that are being written
	socketFile = "fencer.sock"
	firstLock  = "first.lock"
	secondLock = "second.lock"
)

// load reads the lease file. It returns an empty lease if there is no file, if the file is from an earlier
// start of the machine, or if it cannot be parsed. A file that cannot be parsed is no error: save replaces
// the file as a whole, but after a power failure its content may be missing.
func load(dir, boot string) (lease.Lease, error) {
	none := lease.Lease{Boot: boot}
	raw, err := os.ReadFile(filepath.Join(dir, leaseFile))
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	var have lease.Lease
	if err := json.Unmarshal(raw, &have); err != nil || have.Boot != boot {
		return none, nil
	}
	return have, nil
}

// save replaces the lease file in one step. Two fencers may do so at the same moment, because each writes a
// new file with a name of its own.
func save(dir string, l lease.Lease) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(dir, nextLeases) // created with mode 0600
	if err != nil {
		return err
	}
	_, err = next.Write(raw)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), filepath.Join(dir, leaseFile))
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}
