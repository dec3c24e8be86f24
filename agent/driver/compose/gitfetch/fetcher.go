package gitfetch

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/child"
)

// Source is a commit of a Git repository.
type Source struct {
	URL            string // an http or https URL without credentials
	Local          string // path of a repository on this machine, instead of URL
	Want           string // the wanted version: a branch, a tag, a full commit id, or empty for the default branch
	User, Password string // credentials for URL; empty for none
}

// Fetcher fetches commits. It is safe for concurrent use.
type Fetcher struct {
	child child.Runner
	slots chan struct{}
}

// Resource limits of the child process of one fetch. Its time limit is the argument of New.
const (
	memory = 512 << 20
	cpu    = 2 * time.Minute
	atOnce = 2
)

// New returns a Fetcher that aborts a fetch when the time wall has passed since its start.
func New(wall time.Duration) *Fetcher {
	f := &Fetcher{slots: make(chan struct{}, atOnce), child: child.Runner{
		Task:   Task.Name,
		Limits: child.Limits{Memory: memory, CPU: cpu, Wall: wall, Output: 1 << 20, FileSize: 2 * maxBytes},
	}}
	// The child process uses the HTTP proxy and the certificate authorities of this machine.
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		for _, key := range []string{name, strings.ToLower(name)} {
			if value, ok := os.LookupEnv(key); ok {
				f.child.Env = append(f.child.Env, key+"="+value)
			}
		}
	}
	return f
}

// Fetch writes all files of the source's commit to each of the folders into, which must not exist, and
// returns the commit's id (40 hexadecimal digits). work is an empty folder for temporary files. Errors are
// *driver.Error, or the context's error.
func (f *Fetcher) Fetch(ctx context.Context, source Source, work string, into ...string) (commit string, err error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	var a answer
	var end *child.Ended
	switch err := f.child.Run(ctx, order{source, work, into}, &a); {
	case errors.As(err, &end):
		return "", f.fault(end)
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", driver.Errorf(driver.RuntimeUnhealthy, "git", "%w", err)
	case a.Fault != "":
		return "", driver.Errorf(a.Class, "git", "%s", a.Fault)
	}
	return a.Commit, nil
}

func (f *Fetcher) fault(end *child.Ended) error {
	const much = "keep only the stack's configuration in the repository, no data"
	l := f.child.Limits
	switch end.Cause {
	case child.Wall:
		return driver.Errorf(driver.NetworkTimeout, "git", "the fetch took more than %s", l.Wall)
	case child.Memory:
		return driver.Errorf(driver.InvalidSpecification, "git", "the repository needs more than %d MiB of memory to unpack; %s", l.Memory>>20, much)
	case child.CPU:
		return driver.Errorf(driver.InvalidSpecification, "git", "the repository needs more than %s of CPU time to unpack; %s", l.CPU, much)
	}
	return driver.Errorf(driver.InvalidSpecification, "git", "the repository cannot be unpacked: %w", end)
}
