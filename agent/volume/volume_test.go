package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Store in memory. Like a file, it keeps its records when a test replaces the manager.
type memory struct {
	mu   sync.Mutex
	vols map[string]Volume
	atts map[string]Attachment
}

func newMemory() *memory { return &memory{vols: map[string]Volume{}, atts: map[string]Attachment{}} }

func (s *memory) PutVolume(v Volume) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vols[v.ID] = v
	return nil
}
func (s *memory) DropVolume(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.vols, id)
	return nil
}
func (s *memory) PutAttachment(a Attachment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atts[a.ID] = a
	return nil
}
func (s *memory) DropAttachment(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.atts, id)
	return nil
}

func (s *memory) records() (out Records) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.vols {
		out.Volumes = append(out.Volumes, v)
	}
	for _, a := range s.atts {
		out.Attachments = append(out.Attachments, a)
	}
	return out
}

// exit is the error of a program that ends with this exit code.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }
func (e exit) ExitCode() int { return int(e) }

// fake is a System in memory. Its mounts are entries of a list, and a test sets what programs answer.
type fake struct {
	mu       sync.Mutex
	mounts   []Mount
	known    []string
	programs []string
	ran      []string
	answer   func(program string, args []string) (string, error)
	space    Space
}

func (f *fake) Run(_ context.Context, program string, args ...string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ran = append(f.ran, strings.Join(append([]string{program}, args...), " "))
	if f.answer != nil {
		if out, err := f.answer(program, args); out != "" || err != nil {
			return out, err
		}
	}
	switch program {
	case "mount":
		if !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "nodev,nosuid") }) && !slices.Contains(args, "--bind") {
			return "", fmt.Errorf("mount %s: without nodev and nosuid", args)
		}
		m := Mount{Path: args[len(args)-1], Source: args[len(args)-2], Type: "ext4"}
		if i := slices.Index(args, "-t"); i >= 0 {
			m.Type = args[i+1]
		}
		f.mounts = append(f.mounts, m)
	case "rbd":
		if args[0] == "info" {
			return fmt.Sprintf(`{"name":"image","size":%d}`, 5*gib), nil
		}
	case "umount":
		f.mounts = slices.DeleteFunc(f.mounts, func(m Mount) bool { return m.Path == args[0] })
	}
	return "", nil
}

func (f *fake) Find(program string) bool { return slices.Contains(f.programs, program) }
func (f *fake) Mounts() ([]Mount, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mounts), nil
}
func (f *fake) Filesystems() ([]string, error) { return f.known, nil }
func (f *fake) Space(path string) (Space, error) {
	if f.space.Total != 0 {
		return f.space, nil
	}
	return Space{Total: 100 * gib, Used: 40 * gib, Free: 60 * gib}, nil
}

func (f *fake) calls(prefix string) (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.ran {
		if strings.HasPrefix(c, prefix) {
			out = append(out, c)
		}
	}
	return out
}

// bench is a machine with storage and a manager. The storage stays when restart replaces the manager.
type bench struct {
	*testing.T
	cfg   Config
	store *memory
	m     *Manager
}

func newBench(t *testing.T, sys System, change ...func(*Config)) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{T: t, store: newMemory(), cfg: Config{
		Pools: []PoolConfig{{DefaultPool, filepath.Join(dir, "local")}, {"fast", filepath.Join(dir, "fast")}},
		NFS:   NFSConfig{Root: filepath.Join(dir, "nfs")}, Ceph: CephConfig{Root: filepath.Join(dir, "ceph")},
		Node: "node-a", System: sys, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}}
	for _, fn := range change {
		fn(&b.cfg)
	}
	b.restart()
	return b
}

// restart opens the same store with a new manager, as a restarted agent does.
func (b *bench) restart() {
	b.Helper()
	m, err := New(b.cfg, b.store, b.store.records())
	if err != nil {
		b.Fatal(err)
	}
	b.m = m
}

func (b *bench) attach(workload string, kind driver.Kind, specs ...*agentv1.ManagedVolumeSpec) []driver.Volume {
	b.Helper()
	out, err := b.m.Attach(b.Context(), workload, "", kind, specs)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

func (b *bench) refused(want string, class driver.Class, workload string, kind driver.Kind, specs ...*agentv1.ManagedVolumeSpec) {
	b.Helper()
	_, err := b.m.Attach(b.Context(), workload, "", kind, specs)
	if err == nil || !strings.Contains(err.Error(), want) || driver.ClassOf(err) != class {
		b.Errorf("Attach returned the error %v of class %s, want an error that contains %q, of class %s", err, driver.ClassOf(err), want, class)
	}
}

func (b *bench) phase(id string, want Phase) {
	b.Helper()
	if v := b.store.vols[id]; v.Phase != want {
		b.Errorf("volume %q has the phase %q, want %q; the error in its record is %q", id, v.Phase, want, v.Error)
	}
}

func folder(name string, change ...func(*agentv1.ManagedVolumeSpec)) *agentv1.ManagedVolumeSpec {
	s := &agentv1.ManagedVolumeSpec{Name: name, MountPath: "/data"}
	for _, fn := range change {
		fn(s)
	}
	return s
}

func sized(gb int64) func(*agentv1.ManagedVolumeSpec) {
	return func(s *agentv1.ManagedVolumeSpec) { s.SizeGb = gb }
}
func retain(s *agentv1.ManagedVolumeSpec) { s.RetainPolicy = "Retain" }
func by(d string) func(*agentv1.ManagedVolumeSpec) {
	return func(s *agentv1.ManagedVolumeSpec) { s.Driver = d }
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func holds(dir, name, text string) bool {
	raw, err := os.ReadFile(filepath.Join(dir, name))
	return err == nil && string(raw) == text
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

func TestFolderVolumesAreKeptAndDeleted(t *testing.T) {
	b := newBench(t, &fake{})
	at := b.attach("web", driver.Container, folder("Data"))[0]
	if !strings.HasSuffix(at.Path, "/local/data") || at.MountPath != "/data" || at.Disk != "" {
		t.Fatalf("Attach returned %+v", at)
	}
	write(t, at.Path, "f", "one")

	t.Run("an update keeps the volume", func(t *testing.T) {
		if again := b.attach("web", driver.Container, folder("Data"))[0]; again != at || !holds(at.Path, "f", "one") {
			t.Errorf("Attach after an update returned %+v, want the same path, and the volume with its data", again)
		}
	})
	t.Run("a volume in use is not deleted", func(t *testing.T) {
		if err := b.m.Delete(t.Context(), "local:Data"); err == nil || !strings.Contains(err.Error(), "is used by workload web") {
			t.Errorf("deleting a volume in use returned %v, want an error that names the workload", err)
		}
		b.attach("other", driver.Container, folder("Data"))
		if err := b.m.Release(t.Context(), "web", Retention{}); err != nil || !holds(at.Path, "f", "one") {
			t.Errorf("two workloads use the volume; Release of one of them returned %v, or deleted the volume's data", err)
		}
	})
	t.Run("a move keeps the volume", func(t *testing.T) {
		if err := b.m.Release(t.Context(), "other", Retention{Keep: true}); err != nil || !holds(at.Path, "f", "one") {
			t.Errorf("Release of a workload that moves (Keep) returned %v, or removed the volume's data; want no error and the data kept", err)
		}
		b.phase("local:Data", Released)
	})
	t.Run("a returning workload gets the volume back, and the last user's delete removes it", func(t *testing.T) {
		b.restart()
		b.attach("other", driver.Container, folder("Data"))
		if err := b.m.Release(t.Context(), "other", Retention{}); err != nil || !gone(at.Path) || len(b.store.vols)+len(b.store.atts) != 0 {
			t.Errorf("Release of the last workload that uses the volume returned %v and left the records %v and %v, or data; want none", err, b.store.vols, b.store.atts)
		}
	})
	t.Run("a retained volume stays until a person deletes it", func(t *testing.T) {
		at := b.attach("db", driver.Container, folder("keep", retain))[0]
		write(t, at.Path, "f", "two")
		if err := b.m.Release(t.Context(), "db", Retention{}); err != nil || !holds(at.Path, "f", "two") {
			t.Fatalf("Release of the workload of a retained volume returned %v, or removed the volume's data; want no error and the data kept", err)
		}
		b.phase("local:keep", Retained)
		if err := b.m.Delete(t.Context(), "local:keep"); err != nil || !gone(at.Path) {
			t.Errorf("Delete of the retained volume returned %v, or left the volume's data", err)
		}
		if err := b.m.Delete(t.Context(), "local:keep"); !errors.Is(err, ErrNoVolume) {
			t.Errorf("deleting an absent volume returned %v, want ErrNoVolume", err)
		}
	})
	t.Run("a volume that the new revision does not name is released, then deleted with the workload", func(t *testing.T) {
		old := b.attach("w", driver.Container, folder("a"), folder("b", func(s *agentv1.ManagedVolumeSpec) { s.MountPath = "/b" }))
		if err := b.m.Trim(t.Context(), "w", "", []*agentv1.ManagedVolumeSpec{folder("a")}); err != nil {
			t.Fatal(err)
		}
		b.phase("local:b", Released)
		if err := b.m.Release(t.Context(), "w", Retention{}); err != nil || !gone(old[0].Path) || !gone(old[1].Path) {
			t.Errorf("Release of the workload returned %v, or left the data of a volume that its last revision did not name", err)
		}
	})
}

// TestMountedVolumesHaveNoDevicesAndNoSetuid: a device file or a setuid program that a container puts into its
// volume has no effect on the node.
func TestMountedVolumesHaveNoDevicesAndNoSetuid(t *testing.T) {
	sys := &fake{known: []string{"nfs"}, programs: []string{"mkfs.ext4", "mount.nfs"}}
	b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export, c.NFS.Options = "files", "/srv", "vers=4" })
	b.attach("w", driver.Container, folder("local", sized(1)), folder("far", by(NFS), func(s *agentv1.ManagedVolumeSpec) { s.MountPath = "/far" }))
	for _, want := range []string{"-o loop,nodev,nosuid ", "-t nfs -o nodev,nosuid,vers=4 "} {
		if !strings.Contains(strings.Join(sys.calls("mount"), "\n"), want) {
			t.Errorf("no call of mount has the options %q; the calls are %q", want, sys.calls("mount"))
		}
	}
}

func TestInvalidVolumesAreRefused(t *testing.T) {
	b := newBench(t, &fake{programs: []string{"mkfs.ext4"}})
	b.refused("name:", driver.InvalidSpecification, "w", driver.Container, folder("../etc"))
	b.refused("must be local, nfs or ceph-rbd", driver.InvalidSpecification, "w", driver.Container, folder("a", by("iscsi")))
	b.refused("is not one of this node's: root, fast", driver.InvalidSpecification, "w", driver.Container, folder("a", func(s *agentv1.ManagedVolumeSpec) { s.Pool = "slow" }))
	b.refused("fs_type", driver.InvalidSpecification, "w", driver.Container, folder("a", sized(1), func(s *agentv1.ManagedVolumeSpec) { s.FsType = "ntfs" }))
	b.refused("mkfs.xfs is not installed", driver.StorageProvisionFailed, "w", driver.Container, folder("x", sized(1), func(s *agentv1.ManagedVolumeSpec) { s.FsType = "xfs" }))
	b.refused("size_gb: must be set", driver.InvalidSpecification, "w", driver.VM, folder("d"))
	b.refused("70 GB are wanted, 60 GB are free", driver.StorageFull, "w", driver.Container, folder("big", sized(70)))

	b.attach("w", driver.Container, folder("one", sized(50)))
	b.refused("60 GB and the 51 GB of the other volumes exceed the 100 GB", driver.StorageFull, "w", driver.Container, folder("two", sized(60)))
	b.refused("cannot shrink", driver.InvalidSpecification, "w", driver.Container, folder("one", sized(5)))
	b.refused("cannot become a disk of a virtual machine", driver.InvalidSpecification, "v", driver.VM, folder("one", sized(50)))
	b.refused("is in pool", driver.InvalidSpecification, "w", driver.Container, func() *agentv1.ManagedVolumeSpec {
		b.attach("w", driver.Container, folder("p", func(s *agentv1.ManagedVolumeSpec) { s.Pool = "fast" }))
		return folder("p", func(s *agentv1.ManagedVolumeSpec) { s.Pool = "root" })
	}())
	b.refused("would be stored as \"p\"", driver.InvalidSpecification, "w", driver.Container, folder("P"))
}

func TestDiskVolumesGrow(t *testing.T) {
	b := newBench(t, &fake{})
	at := b.attach("vm", driver.VM, folder("d", sized(3)))[0]
	info, err := os.Stat(at.Disk)
	if err != nil || info.Size() != 3*gib || at.Path != "" {
		t.Fatalf("the disk file is %+v, error %v; want 3 GiB", at, err)
	}
	b.refused("is used by workload vm", driver.StorageAttachFailed, "vm2", driver.VM, folder("d", sized(3)))
	b.refused("5000 GB and the 0 GB of the other volumes exceed the 100 GB", driver.StorageFull, "vm", driver.VM, folder("d", sized(5000)))
	b.refused("67 GB are wanted, 60 GB are free", driver.StorageFull, "vm", driver.VM, folder("d", sized(70)))
	b.attach("vm", driver.VM, folder("d", sized(63))) // the volume would grow by 60 GB
	if info, err := os.Stat(at.Disk); err != nil || info.Size() != 63*gib {
		t.Errorf("Attach with a larger size did not enlarge the disk file: %v", err)
	}
	if err := b.m.Release(t.Context(), "vm", Retention{}); err != nil || !gone(at.Disk) {
		t.Errorf("Release of the virtual machine returned %v, or left its disk", err)
	}
}

// Another node has enlarged a shared disk. When a later order on this node names a smaller size,
// the disk is not shrunk.
func TestGrownDiskIsNotShrunk(t *testing.T) {
	a, b := nodes(t)
	disk := func(n *bench, gb int64) int64 {
		t.Helper()
		at := n.attach("vm", driver.VM, folder("d", by("nfs"), sized(gb)))[0].Disk
		info, err := os.Stat(at)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size() / gib
	}
	if first, then, grown, back := disk(a, 2), disk(b, 2), disk(b, 4), disk(a, 3); first != 2 || then != 2 || grown != 4 || back != 4 {
		t.Errorf("the sizes of the disk after the four orders are %d, %d, %d and %d GB; want 2, 2, 4 and 4, because a disk never shrinks", first, then, grown, back)
	}
}

// A workload moves to another node, and its volume is found there. The volume grows to the size that the
// order for that node names.
func TestVolumeFoundAgainGrows(t *testing.T) {
	t.Run("a disk file on an NFS export grows to the size of the new order", func(t *testing.T) {
		a, b := nodes(t)
		a.attach("vm", driver.VM, folder("d", by(NFS), sized(2)))
		at := b.attach("vm", driver.VM, folder("d", by(NFS), sized(4)))[0].Disk
		if info, err := os.Stat(at); err != nil || info.Size() != 4*gib || b.store.vols["nfs:d"].SizeGB != 4 {
			t.Errorf("Attach of the moved volume returned %v; the record of the volume is %+v, want it with the size of the new order", err, b.store.vols["nfs:d"])
		}
	})
	for asked, want := range map[int64]string{4: "", 5: "", 7: "rbd resize --size 7G persys/d"} { // the existing image has 5 GB
		t.Run(fmt.Sprintf("a Ceph image of 5 GB, ordered with %d GB", asked), func(t *testing.T) {
			sys := &fake{programs: []string{"rbd"}}
			b := newBench(t, sys, func(c *Config) { c.Ceph.Pool = "persys" })
			b.attach("vm", driver.VM, folder("d", by(Ceph), sized(asked)))
			if got := strings.Join(sys.calls("rbd resize"), "; "); got != want || b.store.vols["ceph-rbd:d"].SizeGB != asked {
				t.Errorf("Attach ran the resize commands %q, want %q; the record of the volume is %+v", got, want, b.store.vols["ceph-rbd:d"])
			}
		})
	}
	t.Run("a size to which the volume could not grow is not recorded", func(t *testing.T) {
		sys := &fake{programs: []string{"rbd"}, answer: func(p string, args []string) (string, error) {
			if p == "rbd" && args[0] == "resize" {
				return "", errors.New("no room")
			}
			return "", nil
		}}
		b := newBench(t, sys, func(c *Config) { c.Ceph.Pool = "persys" })
		b.refused("no room", driver.StorageProvisionFailed, "vm", driver.VM, folder("d", by(Ceph), sized(7)))
		if v := b.store.vols["ceph-rbd:d"]; v.SizeGB != 5 {
			t.Errorf("the record of the volume is %+v, want the size 5 GB of the existing image", v)
		}
	})
}

// If several nodes create the file of a shared volume at the same time, each writes a file of its own. The
// file that is complete first becomes the volume.
func TestConcurrentlyMadeFileStays(t *testing.T) {
	sys := &fake{programs: []string{"mkfs.ext4"}}
	b := newBench(t, sys)
	sys.answer = func(p string, args []string) (string, error) {
		if p == "mkfs.ext4" {
			write(t, b.cfg.Pools[0].Path, "data.img", "another's")
		}
		return "", nil
	}
	b.attach("db", driver.Container, folder("data", sized(1)))
	f, err := os.Open(filepath.Join(b.cfg.Pools[0].Path, "data.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start := make([]byte, len("another's"))
	if _, err := f.Read(start); err != nil || string(start) != "another's" {
		t.Errorf("the volume's file begins with %q (error %v), want the file that another node completed first", start, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 1<<30 {
		t.Errorf("the file of the volume must have the volume's size of 1 GiB (error %v)", err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.cfg.Pools[0].Path, "*.part")); len(left) > 0 {
		t.Errorf("the folder of the pool still has the incomplete files %q, want only the volume's file", left)
	}
}

// An order for a volume is refused before the agent created anything. A file that already existed under
// the volume's name does not become the workload's, so the delete of the workload leaves it.
func TestRefusedOrderOwnsNothing(t *testing.T) {
	b := newBench(t, &fake{programs: []string{"mkfs.ext4"}})
	if err := os.MkdirAll(b.cfg.Pools[0].Path, 0o711); err != nil {
		t.Fatal(err)
	}
	write(t, b.cfg.Pools[0].Path, "data.img", "somebody's")
	b.refused("GB are wanted", driver.StorageFull, "db", driver.Container, folder("data", sized(90)))
	if err := b.m.Release(t.Context(), "db", Retention{}); err != nil {
		t.Fatal(err)
	}
	if !holds(b.cfg.Pools[0].Path, "data.img", "somebody's") {
		t.Error("the delete of the refused workload removed a file that it does not own")
	}
}

// If a pool's disk or the NFS export is not mounted, as after a reboot, Attach of a volume on it returns an
// error. The volume must not look empty.
func TestMissingStorageIsNotMadeAgain(t *testing.T) {
	for name, c := range map[string]struct {
		kind driver.Kind
		spec *agentv1.ManagedVolumeSpec
	}{
		"local":          {driver.Container, folder("data")},
		"local, a disk":  {driver.VM, folder("data", sized(1))},
		"export":         {driver.Container, folder("data", by(NFS))},
		"export, a disk": {driver.VM, folder("data", by(NFS), sized(1))},
		"another pool":   {driver.Container, folder("data", func(s *agentv1.ManagedVolumeSpec) { s.Pool = "fast" })},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := nodes(t)
			at := b.attach("db", c.kind, c.spec)[0]
			v := b.store.vols[driverOf(c.spec.Driver)+":data"]
			disk := filepath.Dir(v.StagePath)
			if err := os.Rename(disk, disk+".disk"); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(disk, 0o755); err != nil { // an empty folder, as the mount point of a disk that is not mounted
				t.Fatal(err)
			}
			b.restart()
			b.m.Mount(t.Context())
			b.refused("is missing", driver.StorageAttachFailed, "db", c.kind, c.spec)
			if !gone(at.Path + at.Disk) {
				t.Error("Attach made new, empty storage for a volume whose disk is not mounted")
			}
			b.phase(v.ID, Broken)
			if err := os.Remove(disk); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(disk+".disk", disk); err != nil {
				t.Fatal(err)
			}
			if again := b.attach("db", c.kind, c.spec)[0]; again != at {
				t.Errorf("after the disk was mounted again, Attach returned %+v, want %+v as before", again, at)
			}
		})
	}
	t.Run("a volume that another node has deleted is created again", func(t *testing.T) {
		a, b := nodes(t)
		at := a.attach("web", driver.Container, folder("data", by(NFS)))[0]
		if err := a.m.Release(t.Context(), "web", Retention{Keep: true}); err != nil {
			t.Fatal(err)
		}
		b.attach("web", driver.Container, folder("data", by(NFS)))
		if err := b.m.Release(t.Context(), "web", Retention{}); err != nil || !gone(at.Path) {
			t.Fatalf("Release on the other node returned %v, or left the volume's data", err)
		}
		a.attach("web", driver.Container, folder("data", by(NFS)))
	})
}

// nodes returns two machines that share an NFS export.
func nodes(t *testing.T) (a, b *bench) {
	t.Helper()
	root := t.TempDir()
	node := func(name string) *bench {
		return newBench(t, &fake{known: []string{"nfs"}, programs: []string{"mount.nfs"}}, func(c *Config) {
			c.Node, c.NFS = name, NFSConfig{Root: root, Server: "files", Export: "/srv"}
		})
	}
	return node("node-a"), node("node-b")
}

// The folder of a volume "data.img" and the file of a volume "data" have the same path. The second of the
// two is refused, and its removal deletes nothing.
func TestAVolumeMayNotTakeThePathOfAnother(t *testing.T) {
	for _, d := range []string{Local, NFS} {
		t.Run(d, func(t *testing.T) {
			a, b := nodes(t)
			if d == Local {
				b = a
			}
			disk, plain := folder("data", by(d), sized(1), retain), folder("data.img", by(d), retain)
			at := a.attach("vm", driver.VM, disk)[0].Disk
			b.refused("belongs to another volume", driver.InvalidSpecification, "web", driver.Container, plain)
			if d == Local {
				b.refused("belongs to another volume", driver.InvalidSpecification, "web", driver.Container, folder("data.img", sized(1)))
			}
			if err := b.m.Release(t.Context(), "web", Retention{Purge: true}); err != nil || gone(at) {
				t.Fatalf("Release of the refused workload returned %v; it deleted the disk of the other volume: %t", err, gone(at))
			}
			// This record is from an earlier version: it lacks the path of the volume.
			b.store.vols[d+":data.img"] = Volume{ID: d + ":data.img", Name: "data.img", Driver: d, Form: Folder, StagePath: at, Phase: Provisioning, Owner: "web"}
			b.restart()
			if err := b.m.Release(t.Context(), "web", Retention{}); err != nil || gone(at) {
				t.Fatalf("Release of the refused workload, with a volume record of an earlier version, returned %v; it deleted the disk of the other volume: %t", err, gone(at))
			}
			if err := a.m.Release(t.Context(), "vm", Retention{Purge: true}); err != nil || !gone(at) {
				t.Fatalf("Release of the virtual machine did not delete its disk: %v", err)
			}
			at = b.attach("web", driver.Container, plain)[0].Path
			a.refused("belongs to another volume", driver.InvalidSpecification, "vm", driver.VM, disk)
			if err := a.m.Release(t.Context(), "vm", Retention{Purge: true}); err != nil || gone(at) {
				t.Errorf("Release of the refused virtual machine returned %v; it deleted the folder of the other volume: %t", err, gone(at))
			}
		})
	}
}

// A node fails and never comes back. Its workload runs on another node and is then deleted. The volume on the
// shared export stays and is listed.
func TestAVolumeLeftByAFailoverIsListed(t *testing.T) {
	a, b := nodes(t)
	v := folder("data", by(NFS))
	a.attach("the--other", driver.Container, v)
	b.attach("other", driver.Container, v)
	if err := b.m.Release(t.Context(), "other", Retention{}); err != nil || len(b.m.List()) != 0 {
		t.Fatalf("Release of workload \"other\" returned %v, and node b lists the volumes %v; want no volume, because node a still uses it", err, b.m.List())
	}
	a.attach("web", driver.Container, v)
	at := b.attach("web", driver.Container, v)[0]
	write(t, at.Path, "f", "one")
	if err := b.m.Release(t.Context(), "web", Retention{}); err != nil || !holds(at.Path, "f", "one") {
		t.Fatalf("node a may still run workload \"web\", but Release on node b returned %v, or deleted the volume's data", err)
	}
	b.phase("nfs:data", Retained)
	mark := filepath.Join(filepath.Dir(at.Path), usersDir, "data", "node-a--")
	names := func(workload string) {
		t.Helper()
		want := "volume nfs:data is used by node-a, workload " + workload + " (its mark is " + mark + workload + ")"
		if left := b.m.List(); len(left) != 1 || left[0].Error != want {
			t.Errorf("node b lists the volumes %+v, want one volume with the error %q", left, want)
		}
	}
	names("web")
	if err := os.Truncate(mark+"web", 0); err != nil { // earlier agents left an empty file as the mark of a user
		t.Fatal(err)
	}
	b.attach("web", driver.Container, v)
	b.phase("nfs:data", Attached)
	if err := b.m.Release(t.Context(), "web", Retention{}); err != nil {
		t.Fatal(err)
	}
	b.phase("nfs:data", Retained)
	names("web")
	// If a node is lost for good, an operator removes the marks of that node from the export.
	for _, workload := range []string{"web", "the--other"} {
		if err := b.m.Delete(t.Context(), "nfs:data"); err == nil || gone(at.Path) {
			t.Fatalf("a mark of another node exists, but Delete returned %v, or deleted the volume's data", err)
		}
		if err := os.Remove(mark + workload); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.m.Delete(t.Context(), "nfs:data"); err != nil || !gone(at.Path) {
		t.Errorf("all marks were removed, but Delete returned %v, or left the volume's data", err)
	}
}

// The creation of a volume failed half-way. The files that were created are deleted when the workload is deleted.
func TestAHalfMadeVolumeIsDeletedWithItsWorkload(t *testing.T) {
	t.Run("a Ceph image that rbd created before it failed is deleted with the workload", func(t *testing.T) {
		made := false
		sys := &fake{programs: []string{"rbd"}}
		sys.answer = func(p string, args []string) (string, error) {
			switch {
			case p == "rbd" && args[0] == "info" && !made:
				return "", exit(2)
			case p == "rbd" && args[0] == "create":
				made = true
				return "", context.DeadlineExceeded
			case p == "rbd" && args[0] == "rm":
				made = false
			}
			return "", nil
		}
		b := newBench(t, sys, func(c *Config) { c.Ceph.Pool = "persys" })
		b.refused("deadline exceeded", driver.StorageProvisionFailed, "w", driver.Container, folder("db", by(Ceph), sized(5)))
		b.restart()
		if err := b.m.Release(t.Context(), "w", Retention{}); err != nil || made || len(b.store.vols) != 0 {
			t.Errorf("after Release (error %v) the image must be gone; it exists: %v, records of volumes that are left: %v", err, made, b.store.vols)
		}
	})
	t.Run("a disk file whose folder could not be created is deleted with the workload", func(t *testing.T) {
		b := newBench(t, &fake{programs: []string{"mkfs.ext4"}})
		pool := b.cfg.Pools[0].Path
		if err := os.Mkdir(pool, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("nowhere", filepath.Join(pool, "data")); err != nil {
			t.Fatal(err)
		}
		b.refused("data", driver.StorageProvisionFailed, "w", driver.Container, folder("data", sized(1)))
		if gone(filepath.Join(pool, "data.img")) {
			t.Fatal("no file was made, so this test checks nothing")
		}
		if err := b.m.Release(t.Context(), "w", Retention{}); err != nil || !gone(filepath.Join(pool, "data.img")) || len(b.store.vols) != 0 {
			t.Errorf("Release returned %v and left the records %v, want none", err, b.store.vols)
		}
	})
}

// On an export, the volume of a container and that of a virtual machine may have the same name. The first is
// a folder, the second a file, and deleting one leaves the other.
func TestADeletedVMDiskLeavesAFolderOfTheSameName(t *testing.T) {
	a, b := nodes(t)
	at := a.attach("db", driver.Container, folder("data", by(NFS), retain))[0]
	write(t, at.Path, "f", "one")
	if err := a.m.Release(t.Context(), "db", Retention{}); err != nil {
		t.Fatal(err)
	}
	disk := b.attach("vm", driver.VM, folder("data", by(NFS), sized(1)))[0].Disk
	if err := b.m.Release(t.Context(), "vm", Retention{}); err != nil || !gone(disk) {
		t.Errorf("Release did not delete the disk of the virtual machine: %v", err)
	}
	if !holds(at.Path, "f", "one") {
		t.Error("Release of a virtual machine deleted the retained folder of workload \"db\", which has the same volume name")
	}
}

// An operator mounted another file system inside a volume. The delete of the volume does not delete the files on it.
func TestForeignMountIsSpared(t *testing.T) {
	sys := &fake{}
	b := newBench(t, sys)
	at := b.attach("w", driver.Container, folder("v"))[0]
	if err := os.Mkdir(filepath.Join(at.Path, "theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	sys.mounts = []Mount{{Path: filepath.Join(at.Path, "theirs"), Type: "nfs"}}
	if err := b.m.Release(t.Context(), "w", Retention{}); err == nil || !strings.Contains(err.Error(), "unmount it first") {
		t.Errorf("Release with another file system mounted in the volume returned %v, want an error that asks to unmount it", err)
	}
	if gone(at.Path) {
		t.Fatal("Release deleted the files of a mounted file system")
	}
	sys.mounts = nil
	b.restart()
	b.m.Mount(t.Context()) // Mount completes the delete that was interrupted
	if !gone(at.Path) || len(b.store.vols) != 0 {
		t.Errorf("Mount did not complete the interrupted delete; the records of volumes are %v, want none", b.store.vols)
	}
}

func TestNFSVolumesAreMountedAndDeleted(t *testing.T) {
	nfs := func(c *Config) {
		c.NFS.Server, c.NFS.Export, c.NFS.Options = "files.example.com", "/srv/persys", "vers=4.2,hard"
	}
	v := folder("shared", by("nfs"), sized(5))
	t.Run("the error names the program or kernel module that is missing", func(t *testing.T) {
		b := newBench(t, &fake{known: []string{"ext4"}})
		b.refused("PERSYS_STORAGE_NFS_SERVER", driver.StorageProvisionFailed, "w", driver.Container, v)
		b = newBench(t, &fake{known: []string{"ext4"}}, nfs)
		b.refused("the kernel of this node has no NFS client", driver.StorageProvisionFailed, "w", driver.Container, v)
		b.m.Measure(t.Context())
		if got := b.m.Drivers(); len(got) != 0 || !strings.Contains(b.m.Lacks()[NFS], "no NFS client") {
			t.Errorf("the node registers the volume drivers %v and the reasons against others are %v; want no nfs, because the kernel has no NFS client", got, b.m.Lacks())
		}
		b = newBench(t, &fake{known: []string{"nfs4"}}, nfs)
		b.refused("mount.nfs is not installed", driver.StorageProvisionFailed, "w", driver.Container, v)
		if entries, _ := os.ReadDir(b.cfg.NFS.Root); len(entries) != 0 {
			t.Errorf("a local folder was made in place of the nfs volume: %v", entries)
		}
	})
	t.Run("the error of an NFS server that refuses the mount reaches the user", func(t *testing.T) {
		sys := &fake{known: []string{"nfs4"}, programs: []string{"mount.nfs"}, answer: func(p string, _ []string) (string, error) {
			return "", errors.New("mount: access denied by server")
		}}
		newBench(t, sys, nfs).refused("files.example.com:/srv/persys cannot be mounted: mount: access denied", driver.StorageProvisionFailed, "w", driver.Container, v)
	})
	t.Run("an nfs volume is mounted, shared by two nodes, and deleted by the last one", func(t *testing.T) {
		sys := &fake{known: []string{"nfs4"}, programs: []string{"mount.nfs"}}
		a := newBench(t, sys, nfs)
		at := a.attach("w", driver.Container, v)[0]
		if got := sys.calls("mount"); len(got) != 1 || !strings.HasPrefix(got[0], "mount -t nfs -o nodev,nosuid,vers=4.2,hard files.example.com:/srv/persys ") {
			t.Fatalf("ran %q", got)
		}
		if !strings.HasSuffix(at.Path, "/nfs/export/shared") {
			t.Fatalf("Attach returned %+v", at)
		}
		write(t, at.Path, "f", "x")
		a.m.Measure(t.Context())
		if got := a.m.Drivers(); !slices.Equal(got, []string{"nfs"}) {
			t.Errorf("the node registers the volume drivers %v and the reasons against others are %v; want nfs registered", got, a.m.Lacks())
		}
		// Another node mounts the same export.
		other := newBench(t, sys, nfs, func(c *Config) { c.Node, c.NFS.Root = "node-b", a.cfg.NFS.Root })
		other.attach("w", driver.Container, v)
		if err := a.m.Release(t.Context(), "w", Retention{}); err != nil || !holds(at.Path, "f", "x") {
			t.Fatalf("the volume was deleted although another node uses it: %v", err)
		}
		if err := other.m.Release(t.Context(), "w", Retention{KeepShared: true}); err != nil || !holds(at.Path, "f", "x") {
			t.Fatalf("the volume was deleted although the delete has KeepShared: %v", err)
		}
		other.attach("w", driver.Container, v)
		if err := other.m.Release(t.Context(), "w", Retention{}); err != nil || !gone(at.Path) {
			t.Errorf("Release on the last node that uses the volume returned %v, or left the volume's data", err)
		}
	})
	t.Run("an export is recognised as mounted although the kernel shows its source without the final slash", func(t *testing.T) {
		sys := &fake{known: []string{"nfs4"}, programs: []string{"mount.nfs"}}
		b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export = "fd00::7", "/srv/" })
		b.attach("w", driver.Container, v)
		if got := sys.calls("mount"); len(got) != 1 || !strings.HasPrefix(got[0], "mount -t nfs -o nodev,nosuid [fd00::7]:/srv/ ") {
			t.Fatalf("ran %q", got)
		}
		sys.mounts[0].Source = "[fd00::7]:/srv"
		b.restart()
		b.attach("w", driver.Container, v)
	})
	t.Run("the machine was rebooted", func(t *testing.T) {
		sys := &fake{known: []string{"nfs4"}, programs: []string{"mount.nfs"}}
		b := newBench(t, sys, nfs)
		b.attach("w", driver.Container, v)
		sys.mounts = nil
		b.restart()
		b.m.Mount(t.Context())
		if len(sys.mounts) != 1 {
			t.Errorf("after a reboot the export was not mounted again: %v", sys.ran)
		}
	})
}

func TestPoolsAreMeasured(t *testing.T) {
	b := newBench(t, &fake{})
	if got := b.m.Pools(); len(got) != 0 {
		t.Errorf("before the first measurement Pools returns %v, want none", got)
	}
	if !b.m.Measure(t.Context()) || b.m.Measure(t.Context()) {
		t.Error("the first Measure must report that the node's pools changed, and the second must not")
	}
	want := Pool{Name: "fast", Type: "local", TotalGB: 100, UsedGB: 40, Path: b.cfg.Pools[1].Path}
	if got := b.m.Pools(); len(got) != 2 || got[0].Name != DefaultPool || got[1] != want {
		t.Errorf("the pools are %+v", got)
	}
	for name, bad := range map[string][]PoolConfig{"twice": {{"a", "/x"}, {"a", "/y"}}, "nfs": {{"nfs", "/x"}}, "relative": {{"a", "x"}}, "none": nil} {
		if _, err := New(Config{Pools: bad}, newMemory(), Records{}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// The agent takes over the records of a legacy v1 agent: a volume is a folder without size limit, and the
// folder may be anywhere.
func TestRecordsOfAnExistingAgent(t *testing.T) {
	b := newBench(t, &fake{})
	at := filepath.Join(t.TempDir(), "old")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, at, "f", "x")
	b.store.vols["local:data"] = Volume{ID: "local:data", Name: "data", Driver: "local", SizeGB: 10, StagePath: at}
	b.store.atts["local:data:web"] = Attachment{ID: "local:data:web", VolumeID: "local:data", WorkloadID: "web", MountPath: "/data", StagePath: at}
	b.restart()
	if got := b.attach("web", driver.Container, folder("data", sized(10)))[0]; got.Path != at || !holds(at, "f", "x") {
		t.Errorf("Attach of a volume of a legacy v1 agent returned %+v; want the existing folder with its data", got)
	}
	if err := b.m.Release(t.Context(), "web", Retention{}); err != nil || !gone(at) {
		t.Errorf("Release of the workload returned %v, or left the data of a legacy v1 agent's volume", err)
	}
}
