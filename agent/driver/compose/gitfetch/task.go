package gitfetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	gitclient "github.com/go-git/go-git/v5/plumbing/transport/client"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/child"
)

// Task fetches one commit in a child process. A program that makes a Fetcher passes it to child.Serve.
var Task = child.Task{Name: "persys-fetch-git", Do: serve}

// order is the input of a fetch task.
type order struct {
	Source Source
	Work   string   // an empty folder that the task may use
	Into   []string // folders that the task creates, each with all files of the commit
}

// answer is what the child process returns to the agent: the commit id, or an error text and the error's class.
type answer struct {
	Commit string       `json:",omitempty"`
	Class  driver.Class `json:",omitempty"`
	Fault  string       `json:",omitempty"`
}

func serve(input []byte) (any, error) {
	var o order
	if err := json.Unmarshal(input, &o); err != nil {
		return nil, err
	}
	// go-git has one global table of transports. This code may change the table, because the child process
	// fetches only once.
	limited := githttp.NewClient(&http.Client{Transport: limitedTransport{http.DefaultTransport}})
	gitclient.InstallProtocol("http", limited)
	gitclient.InstallProtocol("https", limited)
	commit, err := fetch(context.Background(), o)
	if err != nil {
		return answer{Class: classify(err), Fault: err.Error()}, nil
	}
	return answer{Commit: commit}, nil
}

func fetch(ctx context.Context, o order) (string, error) {
	repo, hash, err := o.Source.open(ctx, o.Work)
	if err != nil {
		return "", err
	}
	commit, err := repo.CommitObject(hash)
	if err != nil {
		return "", err
	}
	tree, err := commit.Tree()
	if err != nil {
		return "", err
	}
	for _, dir := range o.Into {
		if err := export(ctx, tree, dir); err != nil {
			return "", err
		}
	}
	return hash.String(), nil
}

// Upper limits of a Git repository.
const (
	maxFiles = 20_000
	maxBytes = 256 << 20 // maximum bytes of all files of one commit, and of one HTTP answer of the server
	maxRefs  = 16 << 20  // maximum bytes of the server's list of branches and tags
)

// limitedTransport limits the size of a Git server's answers.
type limitedTransport struct{ http.RoundTripper }

func (t limitedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	limit := int64(maxBytes)
	if strings.HasSuffix(req.URL.Path, "/info/refs") {
		limit = maxRefs
	}
	res.Body = &limitedBody{ReadCloser: res.Body, limit: limit, left: limit}
	return res, nil
}

type limitedBody struct {
	io.ReadCloser
	limit, left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, &excess{fmt.Sprintf("the server sends more than %d MiB; keep only the stack's configuration in the repository, no data", b.limit>>20)}
	}
	return n, err
}

// auth returns the source's credentials in the form that go-git requires, nil if there are none.
func (s *Source) auth() transport.AuthMethod {
	if s.User == "" && s.Password == "" {
		return nil
	}
	return &githttp.BasicAuth{Username: s.User, Password: s.Password}
}

// commitPattern matches a full commit id.
var commitPattern = regexp.MustCompile(`^[0-9a-f]{40}$`)

// open resolves s.Want (a branch, tag or commit id) to a commit and fetches only this commit.
func (s *Source) open(ctx context.Context, dir string) (*git.Repository, plumbing.Hash, error) {
	want := s.Want
	if s.Local != "" {
		repo, err := git.PlainOpen(s.Local)
		if err != nil {
			return nil, plumbing.ZeroHash, fmt.Errorf("%s: %w", s.Local, err)
		}
		for _, revision := range candidates(want) {
			if hash, err := repo.ResolveRevision(plumbing.Revision(revision)); err == nil {
				return repo, *hash, nil
			}
		}
		return nil, plumbing.ZeroHash, &noReference{want}
	}
	repo, err := git.Init(filesystem.NewStorage(osfs.New(dir), cache.NewObjectLRUDefault()), nil)
	if err != nil {
		return nil, plumbing.ZeroHash, err
	}
	remote, err := repo.CreateRemote(&config.RemoteConfig{Name: "origin", URLs: []string{s.URL}})
	if err != nil {
		return nil, plumbing.ZeroHash, err
	}
	refs, err := remote.ListContext(ctx, &git.ListOptions{Auth: s.auth(), PeelingOption: git.IgnorePeeled})
	if err != nil {
		return nil, plumbing.ZeroHash, err
	}
	fetch := func(spec string, depth int) error {
		err := remote.FetchContext(ctx, &git.FetchOptions{
			RefSpecs: []config.RefSpec{config.RefSpec(spec)}, Depth: depth, Auth: s.auth(), Tags: git.NoTags,
		})
		if errors.Is(err, git.NoErrAlreadyUpToDate) {
			return nil
		}
		return err
	}
	const here = "refs/persys/source"
	if name := named(refs, want); name != "" {
		if err := fetch("+"+name+":"+here, 1); err != nil {
			return nil, plumbing.ZeroHash, err
		}
		hash, err := repo.ResolveRevision(here)
		if err != nil {
			return nil, plumbing.ZeroHash, err
		}
		return repo, *hash, nil
	}
	if !commitPattern.MatchString(want) {
		return nil, plumbing.ZeroHash, &noReference{want}
	}
	// Some servers do not allow fetching a commit by its id. From such a server, fetch all commits and search
	// for the wanted commit.
	hash := plumbing.NewHash(want)
	if err := fetch(want+":"+here, 1); err != nil {
		if ctx.Err() != nil {
			return nil, plumbing.ZeroHash, ctx.Err()
		}
		if err := fetch("+refs/*:refs/persys/*", 0); err != nil {
			return nil, plumbing.ZeroHash, err
		}
	}
	if _, err := repo.CommitObject(hash); err != nil {
		return nil, plumbing.ZeroHash, &noReference{want}
	}
	return repo, hash, nil
}

// named returns the full reference name of the branch or tag want. If both exist, the branch is chosen.
func named(refs []*plumbing.Reference, want string) string {
	byName := make(map[string]*plumbing.Reference, len(refs))
	for _, r := range refs {
		byName[r.Name().String()] = r
	}
	if want == "" {
		if head := byName["HEAD"]; head != nil {
			if head.Type() == plumbing.SymbolicReference {
				return head.Target().String()
			}
			return "HEAD"
		}
		return ""
	}
	for _, name := range candidates(want) {
		if byName[name] != nil {
			return name
		}
	}
	return ""
}

func candidates(want string) []string {
	if want == "" {
		return []string{"HEAD"}
	}
	out := []string{"refs/heads/" + want, "refs/tags/" + want}
	if strings.HasPrefix(want, "refs/") || commitPattern.MatchString(want) {
		out = append(out, want)
	}
	return out
}

// noReference means that the server answered but has no branch or tag of the wanted name. This error is
// permanent; the error for an unreachable server is temporary.
type noReference struct{ ref string }

func (e *noReference) Error() string {
	if e.ref == "" {
		return "the repository has no default branch"
	}
	return fmt.Sprintf("the repository has no branch, tag or commit %q", e.ref)
}

// classify returns the class of an error of go-git. If the server answers that the repository, branch or
// tag is missing, the error is permanent. If the server is unreachable, the error is temporary.
func classify(err error) driver.Class {
	class := driver.NetworkUnreachable
	var missing *noReference
	var tooMuch *excess
	switch {
	case errors.As(err, &missing), errors.As(err, &tooMuch),
		errors.Is(err, transport.ErrRepositoryNotFound), errors.Is(err, transport.ErrEmptyRemoteRepository),
		errors.Is(err, git.ErrRepositoryNotExists):
		class = driver.InvalidSpecification
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed),
		errors.Is(err, transport.ErrInvalidAuthMethod):
		class = driver.ImagePullAuthFailed
	case errors.Is(err, context.DeadlineExceeded):
		class = driver.NetworkTimeout
	default:
		if c := driver.Generic(err); c != "" {
			class = c
		}
	}
	return class
}

// excess is the error that a repository exceeds the size limits for a stack.
type excess struct{ text string }

func (e *excess) Error() string { return e.text }

// export writes the files of a commit into dir. Symbolic links must point inside the repository.
func export(ctx context.Context, tree *object.Tree, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	files, size := 0, int64(0)
	var links []string
	walker := tree.Files()
	defer walker.Close()
	for {
		f, err := walker.Next()
		if errors.Is(err, io.EOF) {
			return inside(root, links)
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		files++
		size += f.Size
		if files > maxFiles || size > maxBytes {
			return &excess{fmt.Sprintf("the commit holds more than %d files or %d MiB; keep only the stack's configuration in the repository, no data", maxFiles, maxBytes>>20)}
		}
		if err := writeFile(root, f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if f.Mode == filemode.Symlink {
			links = append(links, f.Name)
		}
	}
}

// inside returns an error if following one of the symbolic links, also through other links, leads out of the
// folder root. A link may lead to a file that does not exist.
func inside(root *os.Root, links []string) error {
	for _, name := range links {
		if _, err := root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &excess{fmt.Sprintf("symbolic link %s leads outside the repository, or in a circle", name)}
		}
	}
	return nil
}

// writeFile writes a file or a symbolic link. It syncs a file to the disk: if the folder of a commit
// exists, even after a power failure, the agent assumes that it is complete.
func writeFile(root *os.Root, f *object.File) error {
	if f.Mode == filemode.Symlink {
		target, err := f.Contents()
		if err != nil {
			return err
		}
		if err := root.MkdirAll(filepath.Dir(f.Name), 0o755); err != nil {
			return err
		}
		return root.Symlink(target, f.Name)
	}
	r, err := f.Reader()
	if err != nil {
		return err
	}
	defer r.Close()
	mode := os.FileMode(0o644)
	if f.Mode == filemode.Executable {
		mode = 0o755
	}
	return driver.WriteFile(root, f.Name, mode, r)
}
