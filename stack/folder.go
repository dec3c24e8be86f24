package stack

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/persys/compute/engine"
)

// folder reads the files of a stack, either from memory or from the disk. It reads the disk through os.Root,
// which refuses links that lead out of the folder.
type folder struct {
	files map[string][]byte
	root  *os.Root // the stack's folder on disk; nil if the files are only in memory
	whole bool     // the folder holds all files, as on the machine of the author or in a Git checkout, and not only those that were sent with a request
	reads int
}

// problem is an error whose text says why a file of a stack cannot be used. The text follows the name of the
// file in a fault.
type problem string

func (p problem) Error() string { return string(p) }

// missing means that the file does not exist.
const missing = problem("is not in the stack's folder")

const outside = "leads out of the stack's folder"

// inside converts a path that is written in a Compose file to a path in the stack's folder. A relative path
// starts at base.
func inside(base, written string) (string, error) {
	switch {
	case written == "":
		return "", problem("must not be empty")
	case strings.HasPrefix(written, "~"):
		return "", problem("begins with ~, which has no meaning on a node; only files in the stack's folder can be used")
	case strings.Contains(written, "://"), strings.HasPrefix(written, "git@"), strings.HasPrefix(written, "oci:"):
		return "", problem("is a remote file; only files in the stack's folder can be used")
	case path.IsAbs(written), strings.ContainsAny(written, "\x00\\"), len(written) > 1 && written[1] == ':':
		return "", problem(outside + "; only files in it can be used, by a relative path")
	}
	p := path.Join(base, written)
	if p == ".." || strings.HasPrefix(p, "../") {
		return "", problem(outside + "; only files in it can be used")
	}
	return p, nil
}

// read returns the content of a regular file, which may have at most limit bytes.
func (f *folder) read(name string, limit int64) ([]byte, error) {
	if f.reads++; f.reads > maxFiles {
		return nil, problem(fmt.Sprintf("is one file too many: a stack is loaded from at most %d files", maxFiles))
	}
	if data, ok := f.files[name]; ok {
		if int64(len(data)) > limit {
			return nil, tooBig(int64(len(data)), limit)
		}
		return data, nil
	}
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, problem("cannot be read: " + plainError(err))
	}
	if int64(len(data)) > limit {
		return nil, tooBig(int64(len(data)), limit)
	}
	return data, nil
}

// text returns the content of a file, which must be UTF-8.
func (f *folder) text(name string) ([]byte, error) {
	data, err := f.read(name, MaxText)
	if err == nil {
		err = notText(data)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// notText returns a *misplaced error if the content of a file is not UTF-8.
func notText(data []byte) error {
	if line, column, rule := engine.NotText(data); rule != "" {
		return &misplaced{line, fmt.Sprintf("column %d: %s", column, rule)}
	}
	return nil
}

// misplaced is the error of a file that has a mistake in a certain line.
type misplaced struct {
	line int
	rule string
}

func (e *misplaced) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.rule) }

// fileFault makes the fault for a file that cannot be read; err is the reason, and may name a line.
func fileFault(name string, err error) Fault {
	var at *misplaced
	if errors.As(err, &at) {
		return Fault{File: name, Line: at.line, Rule: at.rule}
	}
	return Fault{File: name, Rule: err.Error()}
}

// open opens a regular file. If the path is a pipe, open fails at once and does not wait for a writer.
func (f *folder) open(name string) (*os.File, error) {
	if f.root == nil {
		return nil, missing
	}
	// Check the kind before opening, because merely opening a device may have an effect.
	info, err := f.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, special(info.Mode())
	}
	var file *os.File
	if err == nil {
		file, err = f.root.OpenFile(name, os.O_RDONLY|nonblock, 0)
	}
	if err != nil {
		return nil, unusable(err)
	}
	if info, err = file.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = file.Close()
		return nil, special(info.Mode())
	}
	return file, nil
}

// kind returns the file type of a path, which must be a regular file or a folder.
func (f *folder) kind(name string) (fs.FileMode, error) {
	if _, ok := f.files[name]; ok {
		return 0, nil
	}
	for other := range f.files {
		if strings.HasPrefix(other, name+"/") || name == "." {
			return fs.ModeDir, nil
		}
	}
	if f.root == nil {
		return 0, missing
	}
	info, err := f.root.Stat(name)
	if err != nil {
		return 0, unusable(err)
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return 0, special(info.Mode())
	}
	return info.Mode().Type(), nil
}

func special(mode fs.FileMode) error {
	kind := "a special file"
	switch {
	case mode.IsDir():
		kind = "a folder"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	}
	return problem("is " + kind + ", not a regular file")
}

func tooBig(n, limit int64) error {
	return problem(fmt.Sprintf("is bigger than %d KiB, the limit of such a file", limit>>10))
}

// unusable returns an error that says in plain words why a file could not be opened.
func unusable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return missing
	case errors.Is(err, fs.ErrPermission):
		return problem("cannot be read, because this user has no permission to read it")
	case errors.Is(err, syscall.ELOOP):
		return problem("is a symbolic link in a circle")
	case strings.Contains(err.Error(), "escapes"): // compare texts, because os.Root exports no error for a path that leads out of the folder
		return problem("is a symbolic link that " + outside)
	}
	return problem("cannot be read: " + plainError(err))
}

// plainError returns the text of an error of package os without the operation and the path.
func plainError(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return err.Error()
}
