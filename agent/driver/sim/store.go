package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/persys/compute/agent/driver"
)

// record is one simulated instance. Its Go maps and slices are not changed after the record is stored.
type record struct {
	Name      string            `json:"name"`
	RuntimeID string            `json:"runtime_id"`
	Labels    map[string]string `json:"labels,omitempty"`
	Image     string            `json:"image,omitempty"`
	Behaviour behaviour         `json:"behaviour"`

	Started   bool          `json:"started,omitempty"`
	StartedAt time.Duration `json:"started_at,omitempty"`
	Wall      time.Time     `json:"wall,omitzero"` // wall clock time of the latest start, StartedAt
	// Ended means that a call, not the simulated behaviour, ended the instance at EndedAt.
	Ended    bool          `json:"ended,omitempty"`
	EndedAt  time.Duration `json:"ended_at,omitempty"`
	ExitCode int           `json:"exit_code,omitempty"`
	Note     string        `json:"note,omitempty"`    // why the agent or a person ended the instance
	Refused  string        `json:"refused,omitempty"` // why the last start failed
	Class    driver.Class  `json:"class,omitempty"`   // failure class of the error in Refused
	Output   []line        `json:"output,omitempty"`
}

// shown converts a monotonic time, given as at, to wall clock time. The time at must be after the latest start
// of the instance.
func (r record) shown(at time.Duration) time.Time { return r.Wall.Add(at - r.StartedAt) }

type line struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// store keeps an engine's state. The caller of its methods must hold the engine's lock.
type store interface {
	lock() (unlock func() error, err error)
	get(name string) (record, bool, error)
	put(record) error
	remove(name string) error
	all() ([]record, error)
	log(entry) error
	entries() ([]entry, error)
	// down returns the reason why the engine is down, or "" if it is up.
	down() (string, error)
	setDown(reason string) error
	// sequence returns a number that is higher than the results of all earlier calls.
	sequence() (uint64, error)
	id() (string, error)
}

type memory struct {
	mu      sync.Mutex
	name    string
	records map[string]record
	runs    []entry
	reason  string
	last    uint64
}

// maxEntries is the maximum number of entries in the run log of an engine in memory. The oldest entries are
// dropped first.
const maxEntries = 1 << 20

func (m *memory) lock() (func() error, error) {
	m.mu.Lock()
	return func() error { m.mu.Unlock(); return nil }, nil
}

func (m *memory) get(name string) (record, bool, error) {
	r, ok := m.records[name]
	return r, ok, nil
}

func (m *memory) put(r record) error          { m.records[r.Name] = r; return nil }
func (m *memory) remove(name string) error    { delete(m.records, name); return nil }
func (m *memory) entries() ([]entry, error)   { return append([]entry(nil), m.runs...), nil }
func (m *memory) down() (string, error)       { return m.reason, nil }
func (m *memory) setDown(reason string) error { m.reason = reason; return nil }
func (m *memory) sequence() (uint64, error)   { m.last++; return m.last, nil }
func (m *memory) id() (string, error)         { return m.name, nil }

func (m *memory) log(e entry) error {
	if len(m.runs) >= maxEntries {
		m.runs = append([]entry(nil), m.runs[maxEntries/2:]...)
	}
	m.runs = append(m.runs, e)
	return nil
}

func (m *memory) all() ([]record, error) {
	out := make([]record, 0, len(m.records))
	for _, r := range m.records {
		out = append(out, r)
	}
	return out, nil
}

// folder stores an engine in these files:
//
//	engine          the engine's id
//	lock            flock: one process at a time
//	sequence        the last number that sequence returned
//	down            present while the engine does not answer, with the reason
//	runs.log        one JSON line for each start and stop, only appended to
//	records/*.json  one file for each instance
type folder struct {
	dir string
	mu  sync.Mutex
}

func openFolder(dir, engineID string) (*folder, error) {
	if err := os.MkdirAll(filepath.Join(dir, "records"), 0o700); err != nil {
		return nil, err
	}
	f := &folder{dir: dir}
	unlock, err := f.lock()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(f.path("engine")); errors.Is(err, fs.ErrNotExist) {
		err = f.replace(f.path("engine"), []byte(engineID+"\n"))
		return f, errors.Join(err, unlock())
	}
	return f, unlock()
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// lock opens the lock file again for each call, because all goroutines of a process would share the lock on
// one open file.
func (f *folder) lock() (func() error, error) {
	f.mu.Lock()
	file, err := os.OpenFile(f.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		f.mu.Unlock()
		return nil, err
	}
	for {
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		f.mu.Unlock()
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return func() error {
		defer f.mu.Unlock()
		return file.Close() // closing the file releases the flock
	}, nil
}

// replace writes a file atomically: if the process is killed, either the old or the new file
// exists.
func (f *folder) replace(path string, data []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func (f *folder) file(name string) string {
	return filepath.Join(f.dir, "records", url.PathEscape(name)+".json")
}

func (f *folder) get(name string) (record, bool, error) {
	r, err := f.read(f.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	return r, err == nil, err
}

func (f *folder) read(path string) (r record, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func (f *folder) put(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return f.replace(f.file(r.Name), data)
}

func (f *folder) remove(name string) error {
	if err := os.Remove(f.file(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *folder) all() ([]record, error) {
	files, err := os.ReadDir(f.path("records"))
	if err != nil {
		return nil, err
	}
	out := make([]record, 0, len(files))
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".json") {
			continue // a leftover of an interrupted replacement
		}
		r, err := f.read(filepath.Join(f.dir, "records", file.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (f *folder) log(e entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(f.path("runs.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	return errors.Join(err, file.Close())
}

func (f *folder) entries() ([]entry, error) { return readLog(f.path("runs.log")) }

func readLog(path string) ([]entry, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []entry
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, 1<<20)
	for n := 1; scanner.Scan(); n++ {
		var e entry
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		out = append(out, e)
	}
	return out, scanner.Err()
}

func (f *folder) down() (string, error) {
	data, err := os.ReadFile(f.path("down"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

func (f *folder) setDown(reason string) error {
	if reason != "" {
		return f.replace(f.path("down"), []byte(reason))
	}
	if err := os.Remove(f.path("down")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *folder) sequence() (uint64, error) {
	data, err := os.ReadFile(f.path("sequence"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var last uint64
	if len(data) > 0 {
		if last, err = strconv.ParseUint(string(data), 10, 64); err != nil {
			return 0, fmt.Errorf("%s: %w", f.path("sequence"), err)
		}
	}
	last++
	return last, f.replace(f.path("sequence"), []byte(strconv.FormatUint(last, 10)))
}

func (f *folder) id() (string, error) {
	data, err := os.ReadFile(f.path("engine"))
	return strings.TrimSpace(string(data)), err
}
