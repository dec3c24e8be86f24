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

// servers of others that tests and benchmarks run, each pinned in a module of its own under tools/.
var servers = map[string]string{
	"etcd":    "go.etcd.io/etcd/server/v3",
	"coredns": ".",
}

// buildLimit is how long one build may take on a busy machine.
const buildLimit = 10 * time.Minute

// Server is the path of a server of others: etcd or coredns. It is built from its folder under
// tools/ once for each state of that folder, into .cache/bin; that takes from half a minute to two.
func Server(ctx context.Context, name string) (string, error) {
	pkg, ok := servers[name]
	if !ok {
		return "", fmt.Errorf("there is no tools/%s", name)
	}
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	return build(ctx, filepath.Join(root, "tools", name), pkg, filepath.Join(root, ".cache", "bin", name))
}

// build makes the program of a module as bin and the state of the module's files, unless it is
// there, and removes what was built from other states.
func build(ctx context.Context, module, pkg, bin string) (string, error) {
	state, err := stateOf(module)
	if err != nil {
		return "", err
	}
	at := bin + "-" + state
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		return "", err
	}
	release, err := Lock(ctx, buildLimit, bin+".lock") // tests of several packages want it at once
	if err != nil {
		return "", err
	}
	defer release()
	if _, err := os.Stat(at); err == nil {
		return at, nil
	}
	// Under another name first: a build that is broken off must not leave half of it.
	part := bin + ".part"
	defer os.Remove(part)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", part, pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
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

// stateOf is 12 hexadecimal digits that change with any file of a folder, go.mod and go.sum too.
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

// Root is the folder of the module that holds the working directory.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", fmt.Errorf("this is not inside the project: go env GOMOD says %q", mod)
	}
	return filepath.Dir(mod), nil
}
