package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/persys/compute/testbed"
)

// Programs by the name of their folder under cmd/.
const (
	SchedulerProgram = "scheduler"
	AgentProgram     = "agent"
	CtlProgram       = "persysctl"
	GatewayProgram   = "gateway"
	DevProgram       = "persys"
)

// Binaries are the paths of the built programs.
type Binaries struct {
	Scheduler, Agent, Ctl, Gateway, Dev string // paths of the programs; empty for programs that were not built
}

// BuildOptions say what to build.
type BuildOptions struct {
	// Dir is the folder for the binaries; Build creates it.
	Dir string
	// Race builds with the race detector, which needs cgo. Without it the programs are static, like the
	// released ones, and the agent has no driver of virtual machines.
	Race bool
	// Programs are folders under cmd/; default scheduler, agent and persysctl.
	Programs []string
	// Version is the version that the programs report; default "dev".
	Version string
}

// BuildsEnv is the environment variable that names a folder in which all Sets are already built.
const BuildsEnv = "E2E_BUILDS"

// Names of the sets of programs that the tests use.
const (
	ShippedSet = "shipped" // static programs, as they are released
	RaceSet    = "race"    // scheduler and agent with the race detector
	FacesSet   = "faces"   // gateway and persys dev with the race detector
)

// Sets returns how to build each set of programs. Each set has a folder of its own below dir.
func Sets(dir string) map[string]BuildOptions {
	return map[string]BuildOptions{
		ShippedSet: {Dir: filepath.Join(dir, ShippedSet), Programs: []string{SchedulerProgram, AgentProgram, CtlProgram, DevProgram}},
		RaceSet:    {Dir: filepath.Join(dir, RaceSet), Race: true, Programs: []string{SchedulerProgram, AgentProgram}},
		FacesSet:   {Dir: filepath.Join(dir, FacesSet), Race: true, Programs: []string{GatewayProgram, DevProgram}},
	}
}

// Build builds the programs with the go command.
func Build(ctx context.Context, opt BuildOptions) (Binaries, error) {
	root, err := testbed.Root(ctx)
	if err != nil {
		return Binaries{}, err
	}
	if len(opt.Programs) == 0 {
		opt.Programs = []string{SchedulerProgram, AgentProgram, CtlProgram}
	}
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return Binaries{}, err
	}
	args := []string{"build", "-trimpath"} // the same flags as make release, so that both use one build cache
	if opt.Race {
		args = args[:1] // use the flags of go test
		// The driver of virtual machines needs cgo, and so does the race detector.
		args = append(args, "-race", "-tags", "libvirt_dlopen")
	}
	flags := "-s -w" // make release uses these flags too, and linking takes less time with them
	if opt.Version != "" {
		flags += " -X main.version=" + opt.Version
	}
	args = append(args, "-ldflags", flags)
	args = append(args, "-o", opt.Dir+string(filepath.Separator))
	for _, p := range opt.Programs {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if opt.Race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return Binaries{}, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	all, b := BuiltIn(opt.Dir), Binaries{}
	for _, p := range opt.Programs {
		switch p {
		case SchedulerProgram:
			b.Scheduler = all.Scheduler
		case AgentProgram:
			b.Agent = all.Agent
		case CtlProgram:
			b.Ctl = all.Ctl
		case GatewayProgram:
			b.Gateway = all.Gateway
		case DevProgram:
			b.Dev = all.Dev
		}
	}
	return b, nil
}

// BuiltIn returns the paths that a Build of all programs into dir writes.
func BuiltIn(dir string) Binaries {
	return Binaries{
		Scheduler: filepath.Join(dir, SchedulerProgram),
		Agent:     filepath.Join(dir, AgentProgram),
		Ctl:       filepath.Join(dir, CtlProgram),
		Gateway:   filepath.Join(dir, GatewayProgram),
		Dev:       filepath.Join(dir, DevProgram),
	}
}
