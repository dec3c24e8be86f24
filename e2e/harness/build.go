package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/persys/compute/testbed"
)

// Binaries holds the paths of the programs. All of them are links to one binary.
type Binaries struct {
	Scheduler, Agent, Ctl, Gateway, Dev string
}

// BuildOptions say what to build.
type BuildOptions struct {
	// Dir is the folder for the binaries; Build creates it.
	Dir string
	// Race builds with the race detector, which needs cgo. Without it the programs are static, like the
	// released ones, and the agent has no driver for virtual machines.
	Race bool
	// Version is the version that the programs report; default "dev".
	Version string
}

// BuildsEnv is the environment variable that names a folder in which e2e/lanes has already built all sets of
// programs (Sets).
const BuildsEnv = "E2E_BUILDS"

// Names of the sets of programs that the tests use.
const (
	ShippedSet = "shipped" // static programs, as they are released
	RaceSet    = "race"    // programs with the race detector
)

// Sets returns how to build each set of programs. Each set has a folder of its own below dir.
func Sets(dir string) map[string]BuildOptions {
	return map[string]BuildOptions{
		ShippedSet: {Dir: filepath.Join(dir, ShippedSet)},
		RaceSet:    {Dir: filepath.Join(dir, RaceSet), Race: true},
	}
}

// Build builds the one binary that is every program with the go command, and links the names of the programs to it.
func Build(ctx context.Context, opt BuildOptions) (Binaries, error) {
	root, err := testbed.Root(ctx)
	if err != nil {
		return Binaries{}, err
	}
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return Binaries{}, err
	}
	args := []string{"build", "-trimpath"} // the same flags as make release, so that both use one build cache
	if opt.Race {
		args = []string{"build", "-race"} // the same flags as go test
	}
	flags := "-s -w" // make release uses these flags too, and linking takes less time with them
	if opt.Version != "" {
		flags += " -X main.version=" + opt.Version
	}
	args = append(args, "-ldflags", flags)
	b := BuiltIn(opt.Dir)
	args = append(args, "-o", b.Dev, "./cmd/persys")
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if opt.Race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return Binaries{}, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	for _, link := range []string{b.Scheduler, b.Agent, b.Ctl, b.Gateway} {
		if err := os.Symlink(filepath.Base(b.Dev), link); err != nil && !errors.Is(err, fs.ErrExist) {
			return Binaries{}, err
		}
	}
	return b, nil
}

// BuiltIn returns the paths of the programs that Build has written, or would write, into the folder dir.
func BuiltIn(dir string) Binaries {
	return Binaries{
		Scheduler: filepath.Join(dir, "persys-scheduler"),
		Agent:     filepath.Join(dir, "persys-agent"),
		Ctl:       filepath.Join(dir, "persysctl"),
		Gateway:   filepath.Join(dir, "persys-gateway"),
		Dev:       filepath.Join(dir, "persys"),
	}
}
