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

	"github.com/persys/compute/policy"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
)

// maxFiles is the maximum number of files read from one folder.
const maxFiles = 10_000

const stdin = "<stdin>"

// Source is the text of one file.
type Source struct {
	Name string // path of the file, for error messages
	Data []byte // text of the file, at most spec.MaxFile+1 bytes, so that a larger file is noticed
	base string // folder against which relative paths in the text are resolved
}

// Read reads files in the order of names. "-" is standard input (in). For a folder it reads the folder's
// *.yaml, *.yml and *.json files, sorted by name, and with recursive also those in subfolders. Hidden files
// are skipped. The error is a *fs.PathError or names the folder.
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

// Options returns the options for parsing the source's text. Relative paths in it start at the source's
// folder. pack loads a Compose file as docker compose would in that folder. If name is not "", it replaces
// the name in the text.
func (s Source) Options(name string, readFile func(string) ([]byte, error), pack func(stack.Local) (*stack.Packed, error)) spec.Options {
	resolved := func(path string) string {
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.base, path)
		}
		return path
	}
	return spec.Options{
		Name:     name,
		ReadFile: func(path string) ([]byte, error) { return readFile(resolved(path)) },
		Stack: func(t spec.StackText) (spec.Stack, error) {
			in := s.Local(t.Name, []byte(t.Text))
			in.Job = t.Job
			if t.File != "" {
				path := resolved(t.File)
				in.Dir, in.File, in.Env = filepath.Dir(path), filepath.Base(path), t.Env
			}
			p, err := pack(in)
			if err != nil {
				return spec.Stack{}, s.faults(in, t.File, err)
			}
			return spec.Stack{Name: p.Name, Env: p.Env, MainFile: p.MainFile, Files: p.Archive}, nil
		},
	}
}

// Local returns text as a Compose file called name in the folder of the source. If the source is standard
// input, the folder is empty.
func (s Source) Local(name string, text []byte) stack.Local {
	in := stack.Local{File: filepath.Base(s.Name), Text: text, Name: name, MaxStopGrace: policy.MaxStopGrace}
	if s.Name != stdin {
		in.Dir = s.base
	}
	return in
}

// faults converts err, the faults found while a Compose file was loaded, to errors of the specification. The names of
// files in err are relative to the folder of the Compose file. own is the path of the Compose file, or "" if the Compose
// text is written in the specification itself; the errors then name no file.
func (s Source) faults(in stack.Local, own string, err error) error {
	var list stack.Faults
	if !errors.As(err, &list) {
		return err
	}
	var out spec.Errors
	for _, f := range list {
		e := spec.FieldError{Line: f.Line, Field: f.At, Rule: f.Rule}
		if f.Line > 0 {
			e.Column = 1
		}
		switch {
		case f.File == in.File && own != "":
			e.File = filepath.Join(s.base, own)
		case f.File != in.File && f.File != "":
			e.File = f.File
			if !filepath.IsAbs(e.File) {
				e.File = filepath.Join(in.Dir, e.File)
			}
		}
		out = append(out, e)
	}
	return out
}

// readLimited reads a file or a pipe, but at most one byte more than spec.MaxFile.
func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, spec.MaxFile+1))
}

// within returns the paths of the specifications in a folder, sorted.
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
