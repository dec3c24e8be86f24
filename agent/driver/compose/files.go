package compose

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/stack/bundle"
)

// The files that are sent with an inline stack are written where its containers use them. The project's folder
// gets one subfolder for each mount and for each file of a secret, config or seccomp profile. The name of the
// subfolder contains the digest of its content. If a file changes, the mount path of its services changes, so
// Compose replaces the containers of these services only. Other containers keep their files. Subfolders that
// begin with mountedDir are for mounts, to which containers may write. Subfolders that begin with keptDir are
// for files that containers only read.
const (
	mountedDir = "mounted"
	keptDir    = "kept"
	// contentName is the name that each mounted file or folder has in the subfolder of its mount.
	contentName = "content"
)

// filesOf returns the files that were sent with an inline stack.
func filesOf(c *agentv1.ComposeSpec) ([]bundle.File, error) {
	if len(c.GetFiles()) == 0 {
		return nil, nil
	}
	files, err := bundle.Unpack(c.GetFiles())
	if err != nil {
		return nil, invalid("compose.files: %w", err)
	}
	return files, nil
}

// lay copies the files that the containers of a stack use into the project's folder, and changes the paths in
// the stack so that they name the copies. Relative paths of the stack are relative to root. It returns the
// folders that the stack uses.
func (d *Driver) lay(p *types.Project, root string, files []bundle.File) (used []string, err error) {
	if len(files) == 0 {
		return nil, nil
	}
	// at copies the files at or below the path name into a subfolder whose name begins with dir. It returns
	// the path of the copy and its digest, or "" if there is no such file.
	at := func(dir, name string) (string, string) {
		rel, ok := within(root, name)
		if !ok || err != nil {
			return "", ""
		}
		var part []bundle.File
		for _, f := range files {
			if below, ok := within(rel, f.Path); ok {
				f.Path = path.Join(contentName, below)
				part = append(part, f)
			}
		}
		if len(part) == 0 {
			return "", ""
		}
		digest := digestOf(rel, part)
		folder := filepath.Join(d.folder(p.Name), dir+"-"+digest)
		if err = d.store(folder, part); err != nil {
			return "", ""
		}
		used = append(used, folder)
		return filepath.Join(folder, contentName), digest
	}
	digests := map[string]string{}
	for name, s := range p.Secrets {
		if to, digest := at(keptDir, s.File); to != "" {
			s.File, digests["secrets/"+name] = to, digest
			p.Secrets[name] = s
		}
	}
	for name, c := range p.Configs {
		if to, digest := at(keptDir, c.File); to != "" {
			c.File, digests["configs/"+name] = to, digest
			p.Configs[name] = c
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		service := p.Services[name]
		for i, v := range service.Volumes {
			if to, _ := at(mountedDir, v.Source); v.Type == types.VolumeTypeBind && to != "" {
				service.Volumes[i].Source = to
			}
		}
		for i, opt := range service.SecurityOpt {
			if file, ok := strings.CutPrefix(opt, "seccomp="); ok {
				if to, _ := at(keptDir, file); to != "" {
					service.SecurityOpt[i] = "seccomp=" + to
				}
			}
		}
		var of []string
		for _, s := range service.Secrets {
			of = append(of, digests["secrets/"+s.Source])
		}
		for _, c := range service.Configs {
			of = append(of, digests["configs/"+c.Source])
		}
		if label := strings.Join(slices.DeleteFunc(of, func(s string) bool { return s == "" }), " "); label != "" {
			service.Labels = service.Labels.Add(driver.LabelFiles, label)
		}
		p.Services[name] = service
	}
	for _, v := range p.Volumes {
		if device := v.DriverOpts["device"]; device != "" {
			if to, _ := at(mountedDir, device); to != "" {
				v.DriverOpts["device"] = to
			}
		}
	}
	if err != nil {
		return nil, &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	return used, nil
}

// within returns name relative to the folder dir, and whether name is inside dir. If dir is ".", every relative
// path is inside.
func within(dir, name string) (string, bool) {
	if name == dir {
		return ".", true
	}
	if dir == "." {
		return name, true
	}
	return strings.CutPrefix(name, dir+"/")
}

// digestOf returns the digest that names the copy of the files at or below rel, a path relative to the
// stack's folder. The digest depends on rel: two folders of a stack with equal content get separate copies,
// because containers may write to them.
func digestOf(rel string, files []bundle.File) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", rel)
	bundle.Hash(h, files)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// store writes files into a new folder, all of them or none. A folder that exists already holds these files,
// because its name is their digest.
func (d *Driver) store(folder string, files []bundle.File) error {
	if exists(folder) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(filepath.Dir(folder), filepath.Base(folder)+".new-")
	if err != nil {
		return err
	}
	if err = errors.Join(writeFiles(temporary, files), os.Chmod(temporary, 0o755)); err == nil {
		err = driver.Rename(temporary, folder)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(temporary))
	}
	return nil
}

func writeFiles(dir string, files []bundle.File) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range files {
		mode := os.FileMode(0o644)
		if f.Executable {
			mode = 0o755
		}
		if err := driver.WriteFile(root, f.Path, mode, bytes.NewReader(f.Data)); err != nil {
			return err
		}
	}
	return nil
}

// forgetFiles removes the subfolders with files of previous versions of a stack. used lists the subfolders of
// the current version, which are kept.
func (d *Driver) forgetFiles(project string, used []string) (err error) {
	for _, dir := range []string{mountedDir, keptDir} {
		old, bad := filepath.Glob(filepath.Join(d.folder(project), dir+"-*"))
		err = errors.Join(err, bad)
		for _, folder := range old {
			if !slices.Contains(used, folder) {
				err = errors.Join(err, os.RemoveAll(folder))
			}
		}
	}
	return err
}
