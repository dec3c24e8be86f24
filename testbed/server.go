package testbed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// servers says, for the name of each third-party program, how it is built from source. The program's folder under
// tools/ has the same name.
var servers = map[string]program{
	"etcd":    {pkg: "go.etcd.io/etcd/server/v3"},
	"coredns": {pkg: "."},
	"dockerd": {pkg: "github.com/moby/moby/v2/cmd/dockerd", tags: "no_btrfs netgo osusergo exclude_graphdriver_btrfs"},
	"runc":    {pkg: "github.com/opencontainers/runc", cgo: true},
}

type program struct {
	pkg, tags string
	cgo       bool
}

// buildLimit is the time limit for building a server.
const buildLimit = 10 * time.Minute

// Server returns the path of a third-party program: "etcd", "coredns", "dockerd" or "runc". The first call builds it from
// its folder under tools/ into .cache/bin, which takes up to two minutes, and six for dockerd. If a file in that folder
// changes, it is built again.
func Server(ctx context.Context, name string) (string, error) {
	p, ok := servers[name]
	if !ok {
		return "", fmt.Errorf("there is no tools/%s", name)
	}
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	return build(ctx, filepath.Join(root, "tools", name), p, filepath.Join(root, ".cache", "bin", name))
}

// build builds a program of a module into the file bin-STATE, where STATE is the hash of the module's files. If
// the file exists, it builds nothing. build removes the files of other states.
func build(ctx context.Context, module string, p program, bin string) (string, error) {
	state, err := stateOf(module)
	if err != nil {
		return "", err
	}
	at := bin + "-" + state
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		return "", err
	}
	release, err := Lock(ctx, buildLimit, bin+".lock") // test processes of several packages may build it at the same time, so take a lock
	if err != nil {
		return "", err
	}
	defer release()
	if _, err := os.Stat(at); err == nil {
		return at, nil
	}
	// Build under another name first, so that an interrupted build leaves no incomplete program.
	part := bin + ".part"
	defer os.Remove(part)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", p.tags, "-o", part, p.pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if p.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", module, err, out)
	}
	if err := os.Rename(part, at); err != nil {
		return "", err
	}
	former, err := filepath.Glob(bin + "-*")
	if err != nil {
		return "", err
	}
	for _, old := range former {
		if old != at {
			err = errors.Join(err, os.Remove(old))
		}
	}
	return at, err
}

// stateOf returns 12 hexadecimal digits of a hash over the names and contents of the files in dir.
func stateOf(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", e.Name(), len(body), body)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6]), nil
}

// Root returns the folder of the Go module that contains the working directory.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", fmt.Errorf("the working directory is not inside the project: go env GOMOD prints %q", mod)
	}
	return filepath.Dir(mod), nil
}
