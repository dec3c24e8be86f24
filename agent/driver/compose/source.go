package compose

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose/gitfetch"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// fetch writes the files of one commit of a Git source into the project's folder, without a .git directory,
// so no credentials stay on the disk. If the folder has the commit already, fetch does nothing.
func (d *Driver) fetch(ctx context.Context, spec *agentv1.WorkloadSpec, project, commit string, out *stack) error {
	body := spec.GetCompose()
	source, err := d.parseSource(spec.GetNamespace(), body)
	if err != nil {
		return err
	}
	out.repo = source.shown
	if commit != "" && exists(d.checkout(project, commit)) && exists(d.committed(project, commit)) {
		out.commit = commit
		return nil
	}
	if err := os.MkdirAll(d.folder(project), 0o700); err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "git", Err: err}
	}
	work, err := os.MkdirTemp(d.folder(project), "fetch-")
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "git", Err: err}
	}
	defer os.RemoveAll(work)
	if source.Want = body.GetGitRef(); commit != "" {
		source.Want = commit
	}
	mounted, kept := filepath.Join(work, gitDir), filepath.Join(work, committedDir)
	if out.commit, err = d.git.Fetch(ctx, source.Source, filepath.Join(work, "repo"), mounted, kept); err != nil {
		return source.fail(err)
	}
	for files, target := range map[string]string{mounted: d.checkout(project, out.commit), kept: d.committed(project, out.commit)} {
		if exists(target) {
			continue // unchanged containers may still mount the files of this commit, so keep the existing folder
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

// checkout returns the folder with the files of a commit that containers mount by a relative path. Each
// commit has its own folder. So the files of a running container stay unchanged, and a new commit changes the
// mount path, which makes Compose replace the containers.
func (d *Driver) checkout(project, commit string) string {
	return filepath.Join(d.folder(project), gitDir+"-"+commit)
}

// committed returns the folder with a clean copy of a commit's files. The stack is loaded from it, because
// containers may have written to the folder of checkout.
func (d *Driver) committed(project, commit string) string {
	return filepath.Join(d.folder(project), committedDir+"-"+commit)
}

// forget removes the files of all commits of a project except one.
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

// source is the Git source of a stack.
type source struct {
	gitfetch.Source
	shown string
}

// fail returns err with the URL of the repository added to its text.
func (s *source) fail(err error) error {
	var e *driver.Error
	if !errors.As(err, &e) {
		return err
	}
	return driver.Errorf(e.Class, "git", "compose.git_repo %s: %w", s.shown, e.Err)
}

// parseSource reads the Git source of a stack's specification. It allows credentials over plain http only if
// the server is this machine.
func (d *Driver) parseSource(namespace string, body *agentv1.ComposeSpec) (*source, error) {
	out, err := d.sourceOf(namespace, body)
	if err != nil || out.User == "" && out.Password == "" {
		return out, err
	}
	u, err := url.Parse(out.URL)
	if err != nil {
		return nil, invalid("compose.git_repo: must be an https, http or file URL")
	}
	if ip, _ := netip.ParseAddr(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && !ip.IsLoopback() {
		return nil, invalid("compose.git_repo %s: credentials must not be sent over plain http, where others can read them; use https", out.shown)
	}
	return out, nil
}

func (d *Driver) sourceOf(namespace string, body *agentv1.ComposeSpec) (*source, error) {
	u, err := url.Parse(body.GetGitRepo())
	if err != nil {
		return nil, invalid("compose.git_repo: must be an https, http or file URL")
	}
	user := u.User
	u.User = nil
	out := &source{gitfetch.Source{URL: u.String()}, u.String()}
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, invalid("compose.git_repo: a file URL names an absolute path on the node, file:///srv/stack.git (got %q)", out.shown)
		}
		out.Local = u.Path
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
		login, password, err := d.opt.GitCredentials(namespace, name, u.Host)
		if err != nil {
			return nil, driver.Errorf(driver.ImagePullAuthFailed, "git", "compose.git_credentials: %w", err)
		}
		out.User, out.Password = login, password
		return out, nil
	}
	password, ok := user.Password()
	if !ok { // the login is a token without a user name: use the token as the user name
		out.User, out.Password = "token", user.Username()
		return out, nil
	}
	out.User, out.Password = user.Username(), password
	return out, nil
}
