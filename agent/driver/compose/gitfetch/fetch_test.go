package gitfetch

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/child"
	"github.com/persys/compute/testbed"
)

// patience is the time limit of a fetch in the tests that reach another limit. With the race detector on a busy machine
// the child is slow.
const patience = 10 * time.Minute

func TestMain(m *testing.M) {
	child.Serve(Task)
	goleak.VerifyTestMain(m)
}

// served returns the URL of a Git server and the id of its only commit, which holds a file called name with
// size bytes.
func served(t *testing.T, name string, size int64) (url, commit string) {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	testbed.Need(t, "git", err)
	dir := filepath.Join(t.TempDir(), "stack")
	repo, err := git.PlainInit(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Truncate(file, size)); err != nil {
		t.Fatal(err)
	}
	tree, err := repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Add(name); err != nil {
		t.Fatal(err)
	}
	hash, err := tree.Commit("a file", &git.CommitOptions{Author: &object.Signature{Name: "test", Email: "test@localhost", When: time.Unix(1, 0)}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Dir(dir), "GIT_HTTP_EXPORT_ALL=1"},
	})
	t.Cleanup(srv.Close)
	return srv.URL + "/stack/.git", hash.String()
}

func TestFetchWritesTheFilesOfACommit(t *testing.T) {
	url, want := served(t, "small", 10)
	into := filepath.Join(t.TempDir(), "files")
	commit, err := New(patience).Fetch(t.Context(), Source{URL: url}, t.TempDir(), into)
	if err != nil || commit != want {
		t.Fatalf("Fetch returned the commit %q, error %v; want %q", commit, err, want)
	}
	if info, err := os.Stat(filepath.Join(into, "small")); err != nil || info.Size() != 10 {
		t.Errorf("the fetched file is %v, error %v; want the size of the file in the commit", info, err)
	}
}

// A small pack unpacks to a file that is larger than the memory limit of a fetch. The fetch fails with an
// error that names the memory limit as the reason.
func TestAPackThatUnpacksToTooMuch(t *testing.T) {
	url, _ := served(t, "zeros", 32<<20)
	f := New(patience)
	f.child.Limits.Memory = 2 << 20
	_, err := f.Fetch(t.Context(), Source{URL: url}, t.TempDir(), filepath.Join(t.TempDir(), "files"))
	if driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "MiB of memory to unpack") {
		t.Errorf("Fetch of a pack that unpacks to more than the memory limit returned %v, want an error about the memory to unpack it", err)
	}
}

// endless is a server whose answers do not end.
func endless(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
	_, _ = w.Write([]byte("001e# service=git-upload-pack\n0000"))
	head := "0123456789012345678901234567890123456789 HEAD\x00side-band-64k\n"
	_, _ = fmt.Fprintf(w, "%04x%s", len(head)+4, head)
	line := []byte("00420123456789012345678901234567890123456789 refs/heads/branch-xy\n")
	for {
		if _, err := w.Write(line); err != nil {
			return
		}
	}
}

func TestAServerThatSendsTooMuch(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(endless))
	defer srv.Close()
	_, err := New(patience).Fetch(t.Context(), Source{URL: srv.URL}, t.TempDir(), filepath.Join(t.TempDir(), "files"))
	if driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "sends more than 16 MiB") {
		t.Errorf("Fetch from a server whose answer is above the size limit returned %v, want an error about the size of the answer", err)
	}
}

func TestAServerThatDoesNotAnswer(t *testing.T) {
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done }))
	defer srv.Close()
	defer close(done)
	_, err := New(time.Second).Fetch(t.Context(), Source{URL: srv.URL}, t.TempDir(), filepath.Join(t.TempDir(), "files"))
	if driver.ClassOf(err) != driver.NetworkTimeout || !strings.Contains(err.Error(), "more than 1s") {
		t.Errorf("Fetch from a server that does not answer returned %v, want a timeout", err)
	}
}
