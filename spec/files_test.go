package spec

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/stack/bundle"
)

func archiveOf(t *testing.T, files ...bundle.File) []byte {
	t.Helper()
	out, err := bundle.Pack(files)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const mounts = "services: {web: {image: a, volumes: ['./conf:/conf', './data:/data']}}"

func withArchive(archive []byte) *controlv1.ApplyWorkloadRequest {
	return &controlv1.ApplyWorkloadRequest{WorkloadId: "s", Files: archive, Spec: &controlv1.WorkloadSpec{
		Type: TypeCompose, Workload: &controlv1.WorkloadSpec_Compose{Compose: &controlv1.ComposeSpec{InlineYaml: mounts}}}}
}

func TestFilesGoIntoTheLogOnce(t *testing.T) {
	key := testKey(t)
	files := []bundle.File{{Path: "conf/run.sh", Data: []byte("hunter2"), Executable: true}, {Path: "conf/a.conf", Data: []byte("a")}}
	req := withArchive(archiveOf(t, files...))
	req.Spec.Count = new(int32(2))
	p, err := Prepare(req, key)
	if err != nil {
		t.Fatal(err)
	}
	put := p.Command.GetPutWorkloads()
	if len(put.GetBundles()) != 1 || len(put.GetWorkloads()) != 2 {
		t.Fatalf("the command has %d bundles and %d workloads, want 1 and 2", len(put.GetBundles()), len(put.GetWorkloads()))
	}
	b := put.GetBundles()[0]
	if raw, _ := put.MarshalVT(); bytes.Contains(raw, []byte("hunter2")) || bytes.Contains(raw, req.Files[:64]) {
		t.Error("the command must hold the files only sealed, but holds them in plain text")
	}
	for _, w := range put.GetWorkloads() {
		if w.GetBundle() != b.GetDigest() {
			t.Errorf("workload %s refers to bundle %q, but the command has bundle %q, want the same digest", w.GetId(), w.GetBundle(), b.GetDigest())
		}
		plain, err := Unseal(w.GetId(), w.GetSpec(), key)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, f := range plain.GetCompose().GetFiles() {
			list = append(list, f.GetPath())
		}
		if !slices.Equal(list, []string{"conf/a.conf", "conf/run.sh"}) || !plain.GetCompose().GetFiles()[1].GetExecutable() || plain.GetCompose().GetFiles()[1].GetSize() != 7 {
			t.Errorf("the stored specification lists files %v, want conf/a.conf and the executable conf/run.sh of 7 bytes", plain.GetCompose().GetFiles())
		}
		if got := w.GetDemand().GetLocalData(); len(got) != 1 || got[0].GetName() != "folder ./data" {
			t.Errorf("copies of files must not count as local data, but do: %v", got)
		}
	}
	back, err := OpenFiles(&fsm.Bundle{Digest: b.GetDigest(), Data: b.GetData()}, key)
	if err != nil || !bytes.Equal(back, req.Files) {
		t.Errorf("OpenFiles must return the archive of the bundle, but returned error %v or another archive", err)
	}
	if _, err := OpenFiles(&fsm.Bundle{Digest: strings.Repeat("0", 64), Data: b.GetData()}, key); err == nil {
		t.Error("OpenFiles must refuse a bundle under another digest, but opened it")
	}
	// The digest depends on the content of the files, not on the bytes of the archive.
	other := files
	other[1].Data = []byte("b")
	for _, c := range []struct {
		name    string
		archive []byte
		same    bool
	}{
		{"the same files in another order have the same content", archiveOf(t, bundle.File{Path: "conf/a.conf", Data: []byte("a")}, files[0]), true},
		{"files with other text have another content", archiveOf(t, other...), false},
		{"a file that is no longer executable changes the content", archiveOf(t, bundle.File{Path: "conf/a.conf", Data: []byte("a")}, bundle.File{Path: "conf/run.sh", Data: []byte("hunter2")}), false},
	} {
		again := withArchive(c.archive)
		again.Spec.Count = new(int32(2))
		q, err := Prepare(again, key)
		if err != nil {
			t.Fatal(err)
		}
		if (q.Content == p.Content) != c.same || (q.Command.GetPutWorkloads().GetBundles()[0].GetDigest() == b.GetDigest()) != c.same {
			t.Errorf("%s: the content hash is %s, and was %s before; it must be the same exactly if the files are the same", c.name, q.Content, p.Content)
		}
	}
	if _, err := Prepare(withArchive(req.Files), nil); err == nil {
		t.Error("Prepare must refuse files without a key to seal them, but accepted them")
	}
}

func TestFilesAreRefused(t *testing.T) {
	good := archiveOf(t, bundle.File{Path: "a", Data: []byte("a")})
	for _, c := range []struct {
		name   string
		change func(*controlv1.ApplyWorkloadRequest)
		want   string
	}{
		{"a request lists files but does not contain the archive", func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.GetCompose().Files = []*controlv1.StackFile{{Path: "a"}}
		}, "apply the Compose file with persysctl from its folder"},
		{"a request names the digest of files but does not contain the archive", func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetCompose().Bundle = strings.Repeat("a", 64) }, "apply the Compose file with persysctl from its folder"},
		{"rubbish", func(r *controlv1.ApplyWorkloadRequest) { r.Files = []byte("x") }, "files: the archive"},
		{"a request for a container contains files", func(r *controlv1.ApplyWorkloadRequest) {
			r.Files, r.Spec = good, &controlv1.WorkloadSpec{Type: TypeContainer, Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "a"}}}
		}, "files: is allowed only with an inline Compose stack"},
		{"a request for a stack in Git contains files", func(r *controlv1.ApplyWorkloadRequest) {
			r.Files = good
			r.Spec.GetCompose().SourceType, r.Spec.GetCompose().GitRepo = "git", "https://example.com/a.git"
		}, "files: is allowed only with an inline Compose stack"},
		{"a request names a main file outside of the folder", func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetCompose().MainFile = "../compose.yaml" }, "compose.main_file"},
	} {
		req := withArchive(nil)
		c.change(req)
		if err := Validate(req).asError(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Validate returned %v, want an error that contains %q", c.name, err, c.want)
		}
	}
	_, err := Parse("web.yaml", []byte("id: s\ncompose:\n  inline: 'services: {a: {image: x}}'\n  main_file: a.yaml\n  bundle: x\n  files:\n  - {path: a}\n"), Options{})
	if err == nil || !strings.Contains(err.Error(), "web.yaml:6:3: compose.files: lists the files beside the Compose file") || !strings.Contains(err.Error(), "web.yaml:5:3: compose.bundle") {
		t.Errorf("an apply of the output of persysctl get -o yaml must be refused for its missing files, but got: %v", err)
	}
}

func TestDiffOfFiles(t *testing.T) {
	with := func(files ...*controlv1.StackFile) *controlv1.WorkloadSpec {
		return &controlv1.WorkloadSpec{Workload: &controlv1.WorkloadSpec_Compose{Compose: &controlv1.ComposeSpec{Files: files}}}
	}
	a, b := &controlv1.StackFile{Path: "a.conf", Digest: "1"}, &controlv1.StackFile{Path: "b.conf", Digest: "2"}
	got := Diff(with(b), with(a, &controlv1.StackFile{Path: "b.conf", Digest: "3"}))
	want := []Difference{{"compose.files[a.conf].digest", "", "1"}, {"compose.files[b.conf].digest", "2", "3"}}
	if !slices.Equal(got, want) {
		t.Errorf("Diff of two lists of files returns %v, want %v", got, want)
	}
}
