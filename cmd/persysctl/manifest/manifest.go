// Package manifest reads the files that are named to be applied: specifications, Compose files, folders of
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

// maxFiles bounds a folder.
const maxFiles = 10_000

const stdin = "<stdin>"

// Source is one text to parse.
type Source struct {
	Name string // as shown in errors
	Data []byte // one byte more than spec.MaxFile at most
	base string // folder that files named in it are relative to
}

// Read reads what is named, in this order; "-" is in, a folder all its *.yaml, *.yml and *.json by name, with
// recursive also those below it. Nothing hidden in a folder is taken. The error is a fs.PathError or says which folder.
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

// Options let a specification name files beside it, and a Compose file have the name and the variables that
// Compose itself would give it. A name that is given goes before.
func (s Source) Options(name string, readFile func(string) ([]byte, error), environ func(string) (string, bool)) spec.Options {
	o := spec.Options{Name: name, ReadFile: func(path string) ([]byte, error) {
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.base, path)
		}
		return readFile(path)
	}}
	if s.Name == stdin {
		return o // no folder, no .env
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
			return nil, errors.New("cannot be read as KEY=VALUE lines") // its own words may show a secret
		}
		return env, nil
	}
	return o
}

// readLimited reads a file or a pipe, one byte more than is allowed at most.
func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, spec.MaxFile+1))
}

// within lists the specifications of a folder in a fixed order.
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
