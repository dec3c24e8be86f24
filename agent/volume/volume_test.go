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

// memory is a Store that outlives managers, as a file does.
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

// exit is a program's end with a code.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }
func (e exit) ExitCode() int { return int(e) }

// fake is a machine in memory: mounts are entries of a list, programs are told by a test.
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
		m := Mount{Path: args[len(args)-1], Source: args[len(args)-2], Type: "ext4"}
		if i := slices.Index(args, "-t"); i >= 0 {
			m.Type = args[i+1]
		}
		f.mounts = append(f.mounts, m)
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

// bench is a machine's storage that managers come and go on.
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

// restart is another process on the same file.
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
	out, err := b.m.Attach(b.Context(), workload, kind, specs)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

func (b *bench) refused(want string, class driver.Class, workload string, kind driver.Kind, specs ...*agentv1.ManagedVolumeSpec) {
	b.Helper()
	_, err := b.m.Attach(b.Context(), workload, kind, specs)
	if err == nil || !strings.Contains(err.Error(), want) || driver.ClassOf(err) != class {
		b.Errorf("error %v (%s), want %q (%s)", err, driver.ClassOf(err), want, class)
	}
}

func (b *bench) phase(id string, want Phase) {
	b.Helper()
	if v := b.store.vols[id]; v.Phase != want {
		b.Errorf("%s is %q, want %q (%s)", id, v.Phase, want, v.Error)
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

func TestFolders(t *testing.T) {
	b := newBench(t, &fake{})
	at := b.attach("web", driver.Container, folder("Data"))[0]
	if !strings.HasSuffix(at.Path, "/local/data") || at.MountPath != "/data" || at.Disk != "" {
		t.Fatalf("%+v", at)
	}
	write(t, at.Path, "f", "one")

	t.Run("an update keeps it", func(t *testing.T) {
		if again := b.attach("web", driver.Container, folder("Data"))[0]; again != at || !holds(at.Path, "f", "one") {
			t.Errorf("%+v", again)
		}
	})
	t.Run("in use it is not deleted", func(t *testing.T) {
		if err := b.m.Delete(t.Context(), "local:Data"); err == nil || !strings.Contains(err.Error(), "is used by workload web") {
			t.Errorf("%v", err)
		}
		b.attach("other", driver.Container, folder("Data"))
		if err := b.m.Release(t.Context(), "web", Fate{}); err != nil || !holds(at.Path, "f", "one") {
			t.Errorf("deleted with its first user: %v", err)
		}
	})
	t.Run("a move keeps it", func(t *testing.T) {
		if err := b.m.Release(t.Context(), "other", Fate{Keep: true}); err != nil || !holds(at.Path, "f", "one") {
			t.Errorf("%v", err)
		}
		b.phase("local:Data", Released)
	})
	t.Run("it is found again, and goes with the last user", func(t *testing.T) {
		b.restart()
		b.attach("other", driver.Container, folder("Data"))
		if err := b.m.Release(t.Context(), "other", Fate{}); err != nil || !gone(at.Path) || len(b.store.vols)+len(b.store.atts) != 0 {
			t.Errorf("%v, left %v %v", err, b.store.vols, b.store.atts)
		}
	})
	t.Run("retained it stays, and a person deletes it", func(t *testing.T) {
		at := b.attach("db", driver.Container, folder("keep", retain))[0]
		write(t, at.Path, "f", "two")
		if err := b.m.Release(t.Context(), "db", Fate{}); err != nil || !holds(at.Path, "f", "two") {
			t.Fatalf("%v", err)
		}
		b.phase("local:keep", Retained)
		if err := b.m.Delete(t.Context(), "local:keep"); err != nil || !gone(at.Path) {
			t.Errorf("%v", err)
		}
		if err := b.m.Delete(t.Context(), "local:keep"); !errors.Is(err, ErrNoVolume) {
			t.Errorf("%v", err)
		}
	})
	t.Run("one that is named no more is released, then goes with the workload", func(t *testing.T) {
		old := b.attach("w", driver.Container, folder("a"), folder("b", func(s *agentv1.ManagedVolumeSpec) { s.MountPath = "/b" }))
		if err := b.m.Trim(t.Context(), "w", []*agentv1.ManagedVolumeSpec{folder("a")}); err != nil {
			t.Fatal(err)
		}
		b.phase("local:b", Released)
		if err := b.m.Release(t.Context(), "w", Fate{}); err != nil || !gone(old[0].Path) || !gone(old[1].Path) {
			t.Errorf("%v", err)
		}
	})
}

func TestRefusals(t *testing.T) {
	b := newBench(t, &fake{programs: []string{"mkfs.ext4"}})
	b.refused("name:", driver.InvalidSpecification, "w", driver.Container, folder("../etc"))
	b.refused("must be local, nfs or ceph-rbd", driver.InvalidSpecification, "w", driver.Container, folder("a", by("iscsi")))
	b.refused("is not one of this node's: root, fast", driver.InvalidSpecification, "w", driver.Container, folder("a", func(s *agentv1.ManagedVolumeSpec) { s.Pool = "slow" }))
	b.refused("fs_type", driver.InvalidSpecification, "w", driver.Container, folder("a", sized(1), func(s *agentv1.ManagedVolumeSpec) { s.FsType = "ntfs" }))
	b.refused("mkfs.xfs is not installed", driver.StorageProvisionFailed, "w", driver.Container, folder("x", sized(1), func(s *agentv1.ManagedVolumeSpec) { s.FsType = "xfs" }))
	b.refused("size_gb: must be set", driver.InvalidSpecification, "w", driver.VM, folder("d"))
	b.refused("70 GB are wanted, 60 GB are free", driver.StorageFull, "w", driver.Container, folder("big", sized(70)))

	b.attach("w", driver.Container, folder("one", sized(50)))
	b.refused("60 GB and the 50 GB of the other volumes are more than the 100 GB", driver.StorageFull, "w", driver.Container, folder("two", sized(60)))
	b.refused("does not shrink", driver.InvalidSpecification, "w", driver.Container, folder("one", sized(5)))
	b.refused("cannot become a disk of a virtual machine", driver.InvalidSpecification, "v", driver.VM, folder("one", sized(50)))
	b.refused("is in pool", driver.InvalidSpecification, "w", driver.Container, func() *agentv1.ManagedVolumeSpec {
		b.attach("w", driver.Container, folder("p", func(s *agentv1.ManagedVolumeSpec) { s.Pool = "fast" }))
		return folder("p", func(s *agentv1.ManagedVolumeSpec) { s.Pool = "root" })
	}())
	b.refused("would be stored as \"p\"", driver.InvalidSpecification, "w", driver.Container, folder("P"))
}

func TestDisks(t *testing.T) {
	b := newBench(t, &fake{})
	at := b.attach("vm", driver.VM, folder("d", sized(3)))[0]
	info, err := os.Stat(at.Disk)
	if err != nil || info.Size() != 3*gib || at.Path != "" {
		t.Fatalf("%+v %v", at, err)
	}
	b.refused("is used by workload vm", driver.StorageAttachFailed, "vm2", driver.VM, folder("d", sized(3)))
	b.attach("vm", driver.VM, folder("d", sized(4)))
	if info, err := os.Stat(at.Disk); err != nil || info.Size() != 4*gib {
		t.Errorf("did not grow: %v", err)
	}
	if err := b.m.Release(t.Context(), "vm", Fate{}); err != nil || !gone(at.Disk) {
		t.Errorf("%v", err)
	}
}

// What is not ours and mounted inside a volume is not deleted with it (contract/gaps.md, 62).
func TestForeignMountIsSpared(t *testing.T) {
	sys := &fake{}
	b := newBench(t, sys)
	at := b.attach("w", driver.Container, folder("v"))[0]
	if err := os.Mkdir(filepath.Join(at.Path, "theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	sys.mounts = []Mount{{Path: filepath.Join(at.Path, "theirs"), Type: "nfs"}}
	if err := b.m.Release(t.Context(), "w", Fate{}); err == nil || !strings.Contains(err.Error(), "unmount it first") {
		t.Errorf("%v", err)
	}
	if gone(at.Path) {
		t.Fatal("deleted what was mounted there")
	}
	sys.mounts = nil
	b.restart()
	b.m.Mount(t.Context()) // goes on with the delete
	if !gone(at.Path) || len(b.store.vols) != 0 {
		t.Errorf("the delete that was begun is not finished: %v", b.store.vols)
	}
}

func TestNFS(t *testing.T) {
	nfs := func(c *Config) {
		c.NFS.Server, c.NFS.Export, c.NFS.Options = "files.example.com", "/srv/persys", "vers=4.2,hard"
	}
	v := folder("shared", by("nfs"), sized(5))
	t.Run("refused with what is missing", func(t *testing.T) {
		b := newBench(t, &fake{known: []string{"ext4"}})
		b.refused("PERSYS_STORAGE_NFS_SERVER", driver.StorageProvisionFailed, "w", driver.Container, v)
		b = newBench(t, &fake{known: []string{"ext4"}}, nfs)
		b.refused("the kernel of this node has no NFS client", driver.StorageProvisionFailed, "w", driver.Container, v)
		b.m.Measure(t.Context())
		if got := b.m.Drivers(); len(got) != 0 || !strings.Contains(b.m.Lacks()[NFS], "no NFS client") {
			t.Errorf("offers %v, lacks %v", got, b.m.Lacks())
		}
		b = newBench(t, &fake{known: []string{"nfs4"}}, nfs)
		b.refused("mount.nfs is not installed", driver.StorageProvisionFailed, "w", driver.Container, v)
		if entries, _ := os.ReadDir(b.cfg.NFS.Root); len(entries) != 0 {
			t.Errorf("a local folder was made in its stead: %v", entries)
		}
	})
	t.Run("a server that refuses", func(t *testing.T) {
		sys := &fake{known: []string{"nfs4"}, programs: []string{"mount.nfs"}, answer: func(p string, _ []string) (string, error) {
			return "", errors.New("mount: access denied by server")
		}}
		newBench(t, sys, nfs).refused("files.example.com:/srv/persys cannot be mounted: mount: access denied", driver.StorageProvisionFailed, "w", driver.Container, v)
	})
	t.Run("mounted, shared, and deleted by the last node", func(t *testing.T) {
		sys := &fake{known: []string{"nfs4"}, programs: []string{"mount.nfs"}}
		a := newBench(t, sys, nfs)
		at := a.attach("w", driver.Container, v)[0]
		if got := sys.calls("mount"); len(got) != 1 || !strings.HasPrefix(got[0], "mount -t nfs -o vers=4.2,hard files.example.com:/srv/persys ") {
			t.Fatalf("ran %q", got)
		}
		if !strings.HasSuffix(at.Path, "/nfs/export/shared") {
			t.Fatalf("%+v", at)
		}
		write(t, at.Path, "f", "x")
		a.m.Measure(t.Context())
		if got := a.m.Drivers(); !slices.Equal(got, []string{"nfs"}) {
			t.Errorf("offers %v, lacks %v", got, a.m.Lacks())
		}
		// Another node on the same export.
		other := newBench(t, sys, nfs, func(c *Config) { c.Node, c.NFS.Root = "node-b", a.cfg.NFS.Root })
		other.attach("w", driver.Container, v)
		if err := a.m.Release(t.Context(), "w", Fate{}); err != nil || !holds(at.Path, "f", "x") {
			t.Fatalf("deleted under another node's feet: %v", err)
		}
		if err := other.m.Release(t.Context(), "w", Fate{KeepShared: true}); err != nil || !holds(at.Path, "f", "x") {
			t.Fatalf("deleted for a scheduler that cannot tell: %v", err)
		}
		other.attach("w", driver.Container, v)
		if err := other.m.Release(t.Context(), "w", Fate{}); err != nil || !gone(at.Path) {
			t.Errorf("the last one did not delete it: %v", err)
		}
	})
	t.Run("after a reboot", func(t *testing.T) {
		sys := &fake{known: []string{"nfs4"}, programs: []string{"mount.nfs"}}
		b := newBench(t, sys, nfs)
		b.attach("w", driver.Container, v)
		sys.mounts = nil
		b.restart()
		b.m.Mount(t.Context())
		if len(sys.mounts) != 1 {
			t.Errorf("not mounted again: %v", sys.ran)
		}
	})
}

func TestCeph(t *testing.T) {
	ceph := func(c *Config) {
		c.Ceph.Pool, c.Ceph.User, c.Ceph.Cluster = "persys", "client.node", "ceph"
	}
	v := folder("db", by("ceph-rbd"), sized(5))
	t.Run("refused with what is missing", func(t *testing.T) {
		newBench(t, &fake{}).refused("PERSYS_STORAGE_CEPH_POOL is not set", driver.StorageProvisionFailed, "w", driver.Container, v)
		newBench(t, &fake{}, ceph).refused("the program rbd is not installed", driver.StorageProvisionFailed, "w", driver.Container, v)
		down := &fake{programs: []string{"rbd"}, answer: func(string, []string) (string, error) { return "", errors.New("rbd: couldn't connect to the cluster!") }}
		newBench(t, down, ceph).refused(`the cluster does not answer for pool "persys"`, driver.StorageProvisionFailed, "w", driver.Container, v)
		newBench(t, &fake{programs: []string{"rbd"}}, ceph, func(c *Config) { c.Ceph.Keyring = "/nowhere/keyring" }).
			refused("PERSYS_STORAGE_CEPH_KEYRING", driver.StorageProvisionFailed, "w", driver.Container, v)
	})
	t.Run("created, mapped, formatted once, mounted, unmapped and removed", func(t *testing.T) {
		made, mapped, formatted := false, false, false
		sys := &fake{programs: []string{"rbd", "mkfs.ext4"}}
		sys.answer = func(p string, args []string) (string, error) {
			switch {
			case p == "mkfs.ext4":
				formatted = true
			case p == "blkid" && !formatted:
				return "", exit(2)
			case p == "blkid":
				return "ext4\n", nil
			case p != "rbd":
			case args[0] == "info" && !made:
				return "", exit(2)
			case args[0] == "create":
				made = true
			case args[0] == "rm":
				made = false
			case args[0] == "device" && args[1] == "list" && mapped:
				return `[{"id":"0","pool":"persys","namespace":"","name":"db","snap":"-","device":"/dev/rbd0"}]`, nil
			case args[0] == "device" && args[1] == "map":
				mapped = true
				return "/dev/rbd0\n", nil
			case args[0] == "device" && args[1] == "unmap":
				mapped = false
			}
			return "", nil
		}
		b := newBench(t, sys, ceph)
		at := b.attach("w", driver.Container, v)[0]
		b.attach("w", driver.Container, v)
		if got := sys.calls("rbd create"); len(got) != 1 || got[0] != "rbd create --size 5G persys/db --cluster ceph --id node" {
			t.Errorf("%q", got)
		}
		if len(sys.calls("mkfs.ext4")) != 1 || len(sys.calls("rbd device map --exclusive persys/db")) != 1 || len(sys.mounts) != 1 || filepath.Base(at.Path) != inside {
			t.Errorf("%+v %q", at, sys.ran)
		}
		if err := b.m.Release(t.Context(), "w", Fate{}); err != nil || made || mapped || len(sys.mounts) != 0 {
			t.Errorf("%v: made %v mapped %v mounts %v", err, made, mapped, sys.mounts)
		}
		if disk := b.attach("vm", driver.VM, folder("vmdisk", by("ceph-rbd"), sized(2)))[0].Disk; disk != "rbd:persys/vmdisk" {
			t.Errorf("disk %q", disk)
		}
	})
}

func TestPools(t *testing.T) {
	b := newBench(t, &fake{})
	if got := b.m.Pools(); len(got) != 0 {
		t.Errorf("%v before any look", got)
	}
	if !b.m.Measure(t.Context()) || b.m.Measure(t.Context()) {
		t.Error("the first look is news, the second is not")
	}
	want := Pool{Name: "fast", Type: "local", TotalGB: 100, UsedGB: 40, Path: b.cfg.Pools[1].Path}
	if got := b.m.Pools(); len(got) != 2 || got[0].Name != DefaultPool || got[1] != want {
		t.Errorf("%+v", got)
	}
	for name, bad := range map[string][]PoolConfig{"twice": {{"a", "/x"}, {"a", "/y"}}, "nfs": {{"nfs", "/x"}}, "relative": {{"a", "x"}}, "none": nil} {
		if _, err := New(Config{Pools: bad}, newMemory(), Records{}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// Records of an existing agent: a folder without limit, wherever it is.
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
		t.Errorf("%+v", got)
	}
	if err := b.m.Release(t.Context(), "web", Fate{}); err != nil || !gone(at) {
		t.Errorf("%v", err)
	}
}
