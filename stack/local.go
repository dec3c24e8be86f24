package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/persys/compute/stack/bundle"
)

// Local is a stack on the machine of its author. It is loaded as `docker compose -f FILE` would load it
// there.
type Local struct {
	// Dir is the folder of the Compose file. Empty means that there is no folder, because the text comes
	// from standard input.
	Dir string
	// File is the name of the Compose file in Dir, Text its content.
	File string
	Text []byte
	// Name is the stack's name. If it is empty, the name is the one that Compose would use, which the comment
	// of Source.Project describes.
	Name string
	// Env are variables from the workload's specification. If Env is not nil, those of .env and of the shell
	// are not used.
	Env map[string]string
	// EnvFiles are the files given with --env-file. If there are none, the file .env in Dir is read, if it
	// exists.
	EnvFiles []string
	// Shell holds the variables of the author's shell, which override those of files.
	Shell map[string]string
	// MaxStopGrace: see Source.MaxStopGrace.
	MaxStopGrace time.Duration
	// Job: see Source.Job.
	Job bool
}

// Packed holds everything that a stack needs on another machine.
type Packed struct {
	Name string
	// Env holds the variables that the stack uses.
	Env map[string]string
	// MainFile is the name of the Compose file in its folder. It is empty if the stack refers to no files, because
	// then only the text of the Compose file is sent.
	MainFile string
	// Files are the files of the folder that the stack uses, besides its Compose file. They are sorted by path.
	// Archive holds the same files; it is nil if there are no files.
	Files   []bundle.File
	Archive []byte
	// FromShell are the names of those variables in Env for which the shell and the files have different
	// values. Env has the value of the shell.
	FromShell []string
	// Empty are the sources of bind mounts that do not exist in the folder, or hold only files that are left
	// out. On the node, the stack gets an empty folder in their place.
	Empty []string
	// Warnings are the warnings of Compose, and warnings about keys that some engines ignore.
	Warnings []string
}

// IgnoreName is the name of a file that lists patterns, in the syntax of .dockerignore. Files in mounted
// folders that match are left out.
const IgnoreName = ".persysignore"

// Pack loads a stack on the machine of its author and collects the files and variables that it needs. Its
// errors are those of Load.
func (l *Loader) Pack(ctx context.Context, in Local) (*Packed, error) {
	src, vars, err := in.source()
	if err != nil {
		return nil, err
	}
	out, err := l.load(ctx, src)
	if err != nil {
		return nil, err
	}
	return in.packed(vars, out)
}

// source returns the Source from which to load the stack. vars are the variables in Local.Env or, if Local.Env
// is nil, those that the stack's .env files set.
func (in *Local) source() (src Source, vars map[string]string, err error) {
	shell := in.Shell
	if vars = in.Env; vars != nil {
		shell = nil
	} else if vars, err = in.variables(); err != nil {
		return Source{}, nil, err
	}
	folder := in.Dir
	if folder != "" { // resolve the folder's name, because the name of "." is needed too
		if folder, err = filepath.Abs(folder); err != nil {
			return Source{}, nil, err
		}
	}
	src = Source{
		Folder: folder, Compose: []string{in.File}, Files: map[string][]byte{in.File: in.Text},
		Shell: maps.Clone(vars), MaxStopGrace: in.MaxStopGrace, Job: in.Job, Strict: true,
	}
	maps.Copy(src.Shell, shell)
	if in.Name != "" {
		src.Project = ProjectName(in.Name)
	}
	return src, vars, nil
}

// packed collects the files and variables that a loaded stack needs. vars are the variables that the method
// source returned.
func (in *Local) packed(vars map[string]string, out *loaded) (*Packed, error) {
	p := &Packed{Name: cmp.Or(in.Name, out.Project), Env: map[string]string{}, Warnings: out.Warnings}
	for _, name := range out.Used {
		p.Env[name] = out.Env[name]
		if v := vars[name]; v != out.Env[name] {
			p.FromShell = append(p.FromShell, name)
		}
	}
	if in.Dir == "" {
		return p, nil
	}
	if len(out.Refs) > 0 {
		p.MainFile = in.File
	}
	return p, p.collect(in.Dir, in.File, out.Refs)
}

// variables reads the files that set variables, as Compose does.
func (in *Local) variables() (map[string]string, error) {
	files := in.EnvFiles
	if named := in.Shell["COMPOSE_ENV_FILES"]; len(files) == 0 && named != "" {
		files = strings.Split(named, ",")
	}
	disabled, _ := strconv.ParseBool(in.Shell["COMPOSE_DISABLE_ENV_FILE"]) // ignore the error: a value that is not a boolean counts as false
	if own := filepath.Join(in.Dir, envName); len(files) == 0 && in.Dir != "" && !disabled {
		info, err := os.Stat(own)
		if err == nil && !info.IsDir() {
			files = []string{own}
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, Faults{{File: envName, Rule: "cannot be read: " + plainError(err)}}
		}
	}
	vars := map[string]string{}
	lookup := func(k string) (string, bool) {
		if v, ok := in.Shell[k]; ok {
			return v, true
		}
		v, ok := vars[k]
		return v, ok
	}
	for _, file := range files {
		shown := file
		if rel, err := filepath.Rel(in.Dir, file); err == nil && in.Dir != "" && filepath.IsLocal(rel) {
			shown = rel
		}
		text, err := readEnv(file)
		if err != nil {
			return nil, Faults{fileFault(shown, err)}
		}
		own, err := ParseEnv(text, lookup)
		if err != nil {
			return nil, Faults{fileFault(shown, err)}
		}
		maps.Copy(vars, own)
	}
	return vars, nil
}

// readEnv reads a file that sets variables. The file may be a pipe.
func readEnv(name string) ([]byte, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, problem("does not exist")
	} else if err != nil {
		return nil, unusable(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxText+1))
	switch {
	case err != nil:
		return nil, problem("cannot be read: " + plainError(err))
	case len(text) > MaxText:
		return nil, tooBig(MaxText+1, MaxText)
	}
	if err := notText(text); err != nil {
		return nil, err
	}
	return text, nil
}

// collect reads those files of the stack's folder that refs lists, with the files in the folders that refs
// lists.
func (p *Packed) collect(dir, main string, refs []Ref) error {
	if len(refs) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	c := collector{root: root, found: map[string]*found{}, passed: map[string]bool{}}
	if err := c.ignore(); err != nil {
		return err
	}
	for _, r := range refs {
		n, mount := len(c.order), r.Bind
		switch {
		case r.Missing && !mount:
		case r.Missing:
			p.Empty = append(p.Empty, r.Path)
		case r.Path == main && !mount:
		default:
			c.add(r, r.Path, mount, 0)
			if mount && len(c.order) == n && !c.passed[r.Path] {
				p.Empty = append(p.Empty, r.Path)
			}
		}
	}
	slices.Sort(p.Empty)
	p.Empty = slices.Compact(p.Empty)
	if len(c.faults) > 0 {
		return c.faults.ordered()
	}
	if len(c.order) > 0 {
		p.Files, p.Archive, err = c.read()
	}
	return err
}

// Limits of a walk through mounted folders.
const (
	maxSeen  = 100_000
	maxDepth = 32
)

type found struct {
	size int64
	exec bool
	ref  Ref
}

// collector finds the files that a stack needs. It follows symbolic links inside the folder.
type collector struct {
	root   *os.Root
	skip   *patternmatcher.PatternMatcher
	found  map[string]*found
	order  []string
	passed map[string]bool // the paths of packed files, and of the folders above them
	seen   int
	faults Faults
}

// ignore reads the file IgnoreName, which lists the files to leave out.
func (c *collector) ignore() error {
	f, err := c.root.Open(IgnoreName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var patterns []string
	if err == nil {
		defer f.Close()
		patterns, err = ignorefile.ReadAll(io.LimitReader(f, MaxText))
	}
	if err == nil {
		c.skip, err = patternmatcher.New(patterns)
	}
	if err != nil {
		return Faults{{File: IgnoreName, Rule: "cannot be used: " + plainError(err)}}
	}
	return nil
}

func (c *collector) fault(r Ref, name string, err error) {
	c.faults.add(Fault{File: r.File, Line: r.Line, At: r.At, Rule: strconv.Quote(name) + " " + err.Error()})
}

// add records the file name, or all files of the folder name. Files below a mounted folder are left out if
// they match a pattern in IgnoreName.
func (c *collector) add(r Ref, name string, mount bool, depth int) {
	if c.seen++; c.seen > maxSeen || depth > maxDepth || len(c.faults) >= maxFaults {
		if c.seen == maxSeen+1 || depth > maxDepth {
			c.fault(r, name, problem(fmt.Sprintf("holds more than %d files, or folders nested more than %d deep; leave some out with %s", maxSeen, maxDepth, IgnoreName)))
		}
		return
	}
	if mount && name != "." && c.skip != nil {
		if out, err := c.skip.MatchesOrParentMatches(name); err == nil && out {
			return
		}
	}
	if _, twice := c.found[name]; twice {
		c.mark(name)
		return
	}
	info, err := c.root.Stat(name)
	switch {
	case err != nil:
		c.fault(r, name, unusable(err))
	case info.Mode().IsRegular():
		c.found[name] = &found{info.Size(), info.Mode()&0o111 != 0, r}
		c.order = append(c.order, name)
		c.mark(name)
	case info.IsDir():
		c.folder(r, name, mount, depth)
	default:
		c.fault(r, name, problem(special(info.Mode()).Error()+"; leave it out with "+IgnoreName))
	}
}

func (c *collector) folder(r Ref, name string, mount bool, depth int) {
	dir, err := c.root.Open(name)
	if err != nil {
		c.fault(r, name, unusable(err))
		return
	}
	entries, err := dir.ReadDir(maxSeen)
	_ = dir.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		c.fault(r, name, problem("cannot be read: "+plainError(err)))
		return
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if mount && (e.Name() == ".gitkeep" || e.Name() == ".keep") {
			continue // leave out this file, which only makes Git keep an otherwise empty folder for data
		}
		c.add(r, path.Join(name, e.Name()), mount, depth+1)
	}
}

// mark records that a path is packed. It also records the folders above it, so that they are not listed in
// Packed.Empty.
func (c *collector) mark(name string) {
	for ; !c.passed[name]; name = path.Dir(name) {
		c.passed[name] = true
	}
}

// read reads the files that were found, up to the maximum sizes of a bundle.
func (c *collector) read() (files []bundle.File, archive []byte, err error) {
	var sum int64
	for _, f := range c.found {
		sum += f.size
	}
	if len(c.order) > bundle.MaxFiles || sum > bundle.MaxBytes {
		return nil, nil, c.tooMuch(fmt.Sprintf("%d files of %s, and at most %d files of %s can go with a stack",
			len(c.order), Size(sum), bundle.MaxFiles, Size(bundle.MaxBytes)))
	}
	files = make([]bundle.File, 0, len(c.order))
	for _, name := range slices.Sorted(slices.Values(c.order)) {
		f := c.found[name]
		file, err := c.root.Open(name)
		if err != nil {
			c.fault(f.ref, name, unusable(err))
			continue
		}
		data, err := io.ReadAll(io.LimitReader(file, f.size+1))
		_ = file.Close()
		if err == nil && int64(len(data)) > f.size {
			err = errors.New("it grows while it is read")
		}
		if err != nil {
			c.fault(f.ref, name, problem("cannot be read: "+plainError(err)))
			continue
		}
		files = append(files, bundle.File{Path: name, Data: data, Executable: f.exec})
	}
	if len(c.faults) > 0 {
		return nil, nil, c.faults.ordered()
	}
	archive, err = bundle.Pack(files)
	var big *bundle.TooBig
	if errors.As(err, &big) {
		return nil, nil, c.tooMuch(fmt.Sprintf("files of %s (%s compressed), and at most %s compressed can go with a stack",
			Size(sum), Size(int64(big.Packed)), Size(bundle.MaxPacked)))
	} else if err != nil {
		return nil, nil, Faults{{Rule: "the files beside the Compose file cannot be packed: " + err.Error()}}
	}
	return files, archive, nil
}

// tooMuch returns a fault for a stack that needs too many or too large files; the parameter what says which
// limit it exceeds.
func (c *collector) tooMuch(what string) error {
	largest := slices.SortedStableFunc(slices.Values(c.order), func(a, b string) int { return cmp.Compare(c.found[b].size, c.found[a].size) })
	var names []string
	for _, name := range largest[:min(3, len(largest))] {
		names = append(names, "./"+name+" ("+Size(c.found[name].size)+")")
	}
	r := c.found[largest[0]].ref
	return Faults{{File: r.File, Line: r.Line, At: r.At, Rule: fmt.Sprintf("needs %s; the largest are %s; leave files out with %s, "+
		"or put them into an image or a volume", what, strings.Join(names, ", "), IgnoreName)}}
}

// Size formats a number of bytes for people.
func Size(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
