package compose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
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
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Bounds on the files of a Git source.
const (
	maxGitFiles = 20_000
	maxGitBytes = 256 << 20
)

// commitPattern is a full commit id.
var commitPattern = regexp.MustCompile(`^[0-9a-f]{40}$`)

// fetch brings the files of a Git source at one commit into the project's folder, without a Git directory, so
// no credentials stay on the disk. A commit that is already there is not fetched again.
func (d *Driver) fetch(ctx context.Context, body *agentv1.ComposeSpec, project, commit string, out *stack) error {
	source, err := d.parseSource(body)
	if err != nil {
		return err
	}
	out.repo = source.shown
	if commit != "" && exists(d.checkout(project, commit)) && exists(d.committed(project, commit)) {
		out.commit = commit
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.opt.GitTimeout)
	defer cancel()
	if err := os.MkdirAll(d.folder(project), 0o700); err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "git", Err: err}
	}
	work, err := os.MkdirTemp(d.folder(project), "fetch-")
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "git", Err: err}
	}
	defer os.RemoveAll(work)
	want := body.GetGitRef()
	if commit != "" {
		want = commit
	}
	repo, hash, err := source.open(ctx, filepath.Join(work, "repo"), want)
	if err != nil {
		return source.fail(err)
	}
	out.commit = hash.String()
	found, err := repo.CommitObject(hash)
	if err != nil {
		return source.fail(err)
	}
	tree, err := found.Tree()
	if err != nil {
		return source.fail(err)
	}
	for _, target := range []string{d.checkout(project, out.commit), d.committed(project, out.commit)} {
		if exists(target) {
			continue // unchanged containers mount the checkout; no container mounts the other copy
		}
		files := filepath.Join(work, filepath.Base(target))
		if err := export(ctx, tree, files); err != nil {
			return source.fail(err)
		}
		if err := os.Rename(files, target); err != nil {
			return &driver.Error{Class: driver.ClassOf(err), Op: "git", Err: err}
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkout returns the folder of a commit. Each commit has its own: files that containers mount by a relative
// path stay unchanged until the containers are replaced, and another commit's folder is another mount, which
// makes Compose replace the services.
func (d *Driver) checkout(project, commit string) string {
	return filepath.Join(d.folder(project), gitDir+"-"+commit)
}

// committed returns the folder of a second copy that no container mounts. The stack is loaded from it, because
// containers may have written to the checkout.
func (d *Driver) committed(project, commit string) string {
	return filepath.Join(d.folder(project), committedDir+"-"+commit)
}

// forget removes the files of all commits but one.
func (d *Driver) forget(project, commit string) error {
	var err error
	for _, of := range []func(project, commit string) string{d.checkout, d.committed} {
		old, bad := filepath.Glob(of(project, "*"))
		err = errors.Join(err, bad)
		for _, dir := range old {
			if dir != of(project, commit) {
				err = errors.Join(err, os.RemoveAll(dir))
			}
		}
	}
	return err
}

// source is the Git repository of a stack.
type source struct {
	url   string // without credentials
	shown string
	ref   string
	auth  transport.AuthMethod
	local string // path of a repository on this machine
}

func (d *Driver) parseSource(body *agentv1.ComposeSpec) (*source, error) {
	u, err := url.Parse(body.GetGitRepo())
	if err != nil {
		return nil, invalid("compose.git_repo: must be an https, http or file URL")
	}
	user := u.User
	u.User = nil
	out := &source{url: u.String(), shown: u.String(), ref: body.GetGitRef()}
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, invalid("compose.git_repo: a file URL names an absolute path on the node, file:///srv/stack.git (got %q)", out.shown)
		}
		out.local = u.Path
		return out, nil
	case "http", "https":
	default:
		return nil, invalid("compose.git_repo: must be an https, http or file URL (got %q)", out.shown)
	}
	if name := body.GetGitCredentials(); name != "" || user == nil {
		if d.opt.GitCredentials == nil {
			if name == "" {
				return out, nil
			}
			return nil, driver.Errorf(driver.InvalidConfiguration, "git", "compose.git_credentials: this agent has no credentials file; set PERSYS_CREDENTIALS_FILE (wanted %q)", name)
		}
		login, password, err := d.opt.GitCredentials(name, u.Host)
		if err != nil {
			return nil, driver.Errorf(driver.ImagePullAuthFailed, "git", "compose.git_credentials: %w", err)
		}
		if login != "" || password != "" {
			out.auth = &githttp.BasicAuth{Username: login, Password: password}
		}
		return out, nil
	}
	password, ok := user.Password()
	if !ok { // a token alone is passed as the user name
		out.auth = &githttp.BasicAuth{Username: "token", Password: user.Username()}
		return out, nil
	}
	out.auth = &githttp.BasicAuth{Username: user.Username(), Password: password}
	return out, nil
}

// open finds the commit of want (a branch, a tag, a commit, or empty for the default branch) and fetches only
// that commit.
func (s *source) open(ctx context.Context, dir, want string) (*git.Repository, plumbing.Hash, error) {
	if s.local != "" {
		repo, err := git.PlainOpen(s.local)
		if err != nil {
			return nil, plumbing.ZeroHash, fmt.Errorf("%s: %w", s.local, err)
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
	remote, err := repo.CreateRemote(&config.RemoteConfig{Name: "origin", URLs: []string{s.url}})
	if err != nil {
		return nil, plumbing.ZeroHash, err
	}
	refs, err := remote.ListContext(ctx, &git.ListOptions{Auth: s.auth, PeelingOption: git.IgnorePeeled})
	if err != nil {
		return nil, plumbing.ZeroHash, err
	}
	fetch := func(spec string, depth int) error {
		err := remote.FetchContext(ctx, &git.FetchOptions{
			RefSpecs: []config.RefSpec{config.RefSpec(spec)}, Depth: depth, Auth: s.auth, Tags: git.NoTags,
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
	// Not every server allows fetching a commit by its id; then fetch everything to find it.
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

// named returns the full reference name of a branch or tag; a branch takes precedence.
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

// noReference means that the server answered without the wanted reference. It is permanent, unlike an unreachable server.
type noReference struct{ ref string }

func (e *noReference) Error() string {
	if e.ref == "" {
		return "the repository has no default branch"
	}
	return fmt.Sprintf("the repository has no branch, tag or commit %q", e.ref)
}

// fail classifies an error: a clear answer of the server is permanent, an unreachable server is not.
func (s *source) fail(err error) error {
	class := driver.NetworkUnreachable
	var missing *noReference
	var tooMuch *excess
	switch {
	case errors.Is(err, context.Canceled):
		return err
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
	return driver.Errorf(class, "git", "compose.git_repo %s: %w", s.shown, err)
}

// excess means that a repository exceeds the bounds of a stack.
type excess struct{ text string }

func (e *excess) Error() string { return e.text }

// export writes a commit's files. Symbolic links must point inside the repository.
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
	walker := tree.Files()
	defer walker.Close()
	for {
		f, err := walker.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		files++
		size += f.Size
		if files > maxGitFiles || size > maxGitBytes {
			return &excess{fmt.Sprintf("the commit holds more than %d files or %d MiB; a stack's repository holds its configuration, not data", maxGitFiles, maxGitBytes>>20)}
		}
		if err := writeFile(root, f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
}

func writeFile(root *os.Root, f *object.File) error {
	if parent := filepath.Dir(f.Name); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	if f.Mode == filemode.Symlink {
		target, err := f.Contents()
		if err != nil {
			return err
		}
		if !filepath.IsLocal(filepath.Join(filepath.Dir(f.Name), target)) || filepath.IsAbs(target) {
			return &excess{fmt.Sprintf("symbolic link %s leads outside the repository", f.Name)}
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
	w, err := root.OpenFile(f.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	if err == nil {
		err = w.Sync() // an existing folder counts as complete, also after a power failure
	}
	return errors.Join(err, w.Close())
}
