// Package manifest reads the files of an apply: specifications, Compose files, folders of
// both, and standard input.
package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"

	"github.com/persys/compute/spec"
)

// maxFiles bounds the files of one folder.
const maxFiles = 10_000

const stdin = "<stdin>"

// Source is the text of one file.
type Source struct {
	Name string // path, for errors
	Data []byte // at most spec.MaxFile+1 bytes
	base string // folder of relative paths in the text
}

// Read reads files in the order of names. "-" is standard input (in). A folder stands for its *.yaml, *.yml
// and *.json in the order of their names; with recursive its subfolders are read too. Hidden files are skipped.
// The error is a *fs.PathError or names the folder.
func Read(names []string, recursive bool, in io.Reader) ([]Source, error) {
	var out []Source
	for _, name := range names {
		if name == "-" {
			data, err := io.ReadAll(io.LimitReader(in, spec.MaxFile+1))
			if err != nil {
				return nil, fmt.Errorf("standard input: %w", err)
			}
			out = append(out, Source{stdin, data, "."})
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		paths := []string{name}
		if info.IsDir() {
			if paths, err = within(name, recursive); err != nil {
				return nil, err
			}
		}
		for _, p := range paths {
			data, err := readLimited(p)
			if err != nil {
				return nil, err
			}
			out = append(out, Source{p, data, filepath.Dir(p)})
		}
	}
	return out, nil
}

// Options are the options to parse the text: relative paths are resolved from its folder, and a Compose file
// gets the stack name and the variables that Compose would give it. A name that is not "" takes precedence.
func (s Source) Options(name string, readFile func(string) ([]byte, error), environ func(string) (string, bool)) spec.Options {
	o := spec.Options{Name: name, ReadFile: func(path string) ([]byte, error) {
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.base, path)
		}
		return readFile(path)
	}}
	if s.Name == stdin {
		return o // standard input has no folder and no .env
	}
	if dir, err := filepath.Abs(s.base); err == nil {
		o.DefaultName = filepath.Base(dir)
	}
	o.Env = func() (map[string]string, error) {
		data, err := readFile(filepath.Join(s.base, ".env"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		env, err := dotenv.UnmarshalBytesWithLookup(data, environ)
		if err != nil {
			return nil, errors.New("must consist of KEY=VALUE lines") // the library's error may quote a secret
		}
		return env, nil
	}
	return o
}

// readLimited reads a file or a pipe, at most one byte more than spec.MaxFile.
func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, spec.MaxFile+1))
}

// within lists the files of a folder, sorted.
func within(dir string, recursive bool) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (!recursive || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || strings.HasPrefix(d.Name(), "."):
			return nil
		}
		if slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(path))) {
			out = append(out, path)
		}
		if len(out) > maxFiles {
			return fmt.Errorf("%s holds more than %d specifications", dir, maxFiles)
		}
		return nil
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%s holds no *.yaml, *.yml or *.json", dir)
	}
	return out, err
}
