package diskfile

import (
	"os"
	"path/filepath"
	"testing"
)

// The mark file beside a disk names the disk's owner and source image. Mark files of earlier versions lack some
// of these lines and can still be read.
func TestMarksOfAllVersionsAreRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if text == "" {
			return path
		}
		if err := os.WriteFile(path+MarkSuffix, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, image := range []string{"", "/images/a b\n\"c\".qcow2"} {
		path := at("own", "")
		if err := (Mark{Cluster: "c1", Node: "node-a", Workload: "web", Image: image}).Write(path); err != nil {
			t.Fatal(err)
		}
		if !Made(path, "c1", "web") || Made(path, "c1", "web-2") || Made(path, "c2", "web") {
			t.Error("Made must return true for the workload in the mark and false for another workload")
		}
		if got, known := MadeFrom(path, "node-a"); got != image || !known {
			t.Errorf("MadeFrom returned %q, known: %v; want %q", got, known, image)
		}
		if got, known := MadeFrom(path, "node-b"); known {
			t.Errorf("MadeFrom on another node returned the image path %q of the mark, want an unknown image", got)
		}
		if Elsewhere(path, "node-a") || !Elsewhere(path, "node-b") {
			t.Error("Elsewhere returned true for the node that made the disk, or false for another node")
		}
	}
	for _, c := range []struct {
		what, path string
		ours       bool
	}{
		{"a mark of an earlier version", at("earlier", "2026-01-02T03:04:05Z\nc1\nweb\n"), true},
		{"a mark whose image cannot be parsed", at("odd", "2026-01-02T03:04:05Z\nc1\nweb\nnode \"node-a\"\nimage '\n"), true},
		{"a mark of a legacy v1 agent", at("web-vda.qcow2", "2026-01-02T03:04:05Z"), true},
		{"mark of a legacy v1 agent, for another workload", at("db-vda.qcow2", "2026-01-02T03:04:05Z"), false},
		{"a disk without a mark", at("absent", ""), false},
	} {
		if ours := Made(c.path, "c1", "web"); ours != c.ours {
			t.Errorf("%s: Made for workload \"web\" returned %v, want %v", c.what, ours, c.ours)
		}
		if image, known := MadeFrom(c.path, "node-a"); known {
			t.Errorf("%s: MadeFrom returned the image %q, want an unknown one", c.what, image)
		}
		if Elsewhere(c.path, "node-a") {
			t.Errorf("%s: Elsewhere returned true, although the mark names no other node", c.what)
		}
	}
	taken := at("taken", "")
	if err := (Mark{Cluster: "c1", Node: "node-b", Workload: "web", Unsure: true}).Write(taken); err != nil {
		t.Fatal(err)
	}
	if image, known := MadeFrom(taken, "node-b"); known || !Made(taken, "c1", "web") || Elsewhere(taken, "node-b") {
		t.Errorf("after node \"node-b\" took the disk over, MadeFrom returned the image %q, known: %v; want it unknown, and the disk as one of node-b", image, known)
	}
}
