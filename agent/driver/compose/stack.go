package compose

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/compose/v5/pkg/api"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// ProjectName returns the Compose project of a workload. It is the workload's id if Compose allows it
// (lower-case letters, digits, '-' and '_'), else the id with other characters replaced, followed by 6 hex
// digits of the id's hash, so that different ids never share a project.
func ProjectName(id driver.ID) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, string(id))
	name = strings.TrimLeft(name, "-_")
	if name == string(id) {
		return name
	}
	sum := sha256.Sum256([]byte(id))
	return strings.TrimLeft(name+"-"+hex.EncodeToString(sum[:3]), "-_")
}

// names returns the possible projects of a workload, in order of preference.
func (d *Driver) names(id driver.ID) []string {
	return []string{ProjectName(id), ProjectName(id) + "--" + ProjectName(driver.ID(d.opt.NodeID))}
}

// Folders of a stack. An inline stack has one folder for its relative paths, and another one, which no
// container mounts, from which it is loaded.
const (
	inlineDir    = "files"
	readDir      = "read"
	gitDir       = "git"
	committedDir = "commit"
)

// Source types of a ComposeSpec; empty means inline.
const sourceGit = "git"

func isGit(c *agentv1.ComposeSpec) bool { return strings.EqualFold(c.GetSourceType(), sourceGit) }

// plain decodes base64, the form in which schedulers send the text. A Compose file always contains a colon
// and base64 never does, so the two cannot be confused.
func plain(text string) (string, error) {
	packed := strings.Join(strings.Fields(text), "")
	if packed == "" {
		return "", invalid("compose.compose_yaml: must not be empty")
	}
	if strings.ContainsRune(packed, ':') {
		return text, nil
	}
	raw, err := base64.StdEncoding.DecodeString(packed)
	if err != nil || !utf8.Valid(raw) {
		return "", invalid("compose.compose_yaml: must be YAML with services, or its base64")
	}
	return string(raw), nil
}

func invalid(format string, args ...any) error {
	return driver.Errorf(driver.InvalidSpecification, "ensure", format, args...)
}

// stack is a workload as a Compose project.
type stack struct {
	project *types.Project
	commit  string // commit of the Git source
	repo    string // repository address without credentials
	images  []wanted
}

// wanted is one image that a stack needs.
type wanted struct {
	image  moby.Image
	policy string
}

// expected returns the number of containers that each service will have.
func (s *stack) expected() map[string]int {
	out := make(map[string]int, len(s.project.Services))
	for name, service := range s.project.Services {
		out[name] = service.GetScale()
	}
	return out
}

// load loads a stack. commit pins a Git source that was deployed before; "" resolves the reference again.
func (d *Driver) load(ctx context.Context, spec driver.Spec, project, commit string) (*stack, error) {
	body := spec.Body.GetCompose()
	out := &stack{}
	env := types.Mapping{}
	details := types.ConfigDetails{}
	var files string
	if isGit(body) {
		if err := d.fetch(ctx, body, project, commit, out); err != nil {
			return nil, err
		}
		details.WorkingDir, files = d.committed(project, out.commit), d.checkout(project, out.commit)
	} else {
		text, err := plain(body.GetComposeYaml())
		if err != nil {
			return nil, err
		}
		details.WorkingDir, files = filepath.Join(d.folder(project), readDir), filepath.Join(d.folder(project), inlineDir)
		for _, dir := range []string{details.WorkingDir, files} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
			}
		}
		details.ConfigFiles = []types.ConfigFile{{Filename: filepath.Join(details.WorkingDir, "compose.yaml"), Content: []byte(text)}}
	}
	if err := restoreEnvironment(details.WorkingDir); err != nil {
		return nil, &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	if isGit(body) {
		if err := ownEnvironment(details.WorkingDir, env); err != nil {
			return nil, err
		}
	}
	maps.Copy(env, body.GetEnv())
	details.Environment = env
	if isGit(body) {
		var err error
		if details.ConfigFiles, err = configFiles(details.WorkingDir, env["COMPOSE_FILE"]); err != nil {
			return nil, err
		}
	}
	done, err := writeEnvironment(details.WorkingDir, body.GetEnv())
	if err != nil {
		return nil, &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	defer done()
	var profiles []string
	for p := range strings.SplitSeq(env["COMPOSE_PROFILES"], ",") {
		if p = strings.TrimSpace(p); p != "" {
			profiles = append(profiles, p)
		}
	}
	p, err := loader.LoadWithContext(ctx, details, loader.WithProfiles(profiles), loader.WithDiscardEnvFiles, func(o *loader.Options) {
		o.SetProjectName(project, true)
		o.ResolvePaths = true
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, invalid("compose: %w", withoutLast(withoutValues(err), details))
	}
	out.project = p.WithoutUnnecessaryResources()
	move(out.project, details.WorkingDir, files)
	if err := external(out.project, spec.Volumes); err != nil {
		return nil, err
	}
	if len(out.project.Services) == 0 {
		return nil, invalid("compose: no service is enabled; set COMPOSE_PROFILES in compose.env")
	}
	// A stack without containers cannot be observed, so Ensure would repeat forever.
	if slices.Max(slices.Collect(maps.Values(out.expected()))) < 1 {
		return nil, invalid("compose: every service has 0 replicas, at least one must have a container; the desired state stopped stops a stack")
	}
	return out, d.prepare(spec, out)
}

// move replaces the folder from by to in every path of a loaded stack that Compose or the engine uses.
func move(p *types.Project, from, to string) {
	moved := func(path string) string {
		if rest, ok := strings.CutPrefix(path, from); ok && (rest == "" || rest[0] == filepath.Separator) {
			return to + rest
		}
		return path
	}
	p.WorkingDir = moved(p.WorkingDir)
	for i, path := range p.ComposeFiles {
		p.ComposeFiles[i] = moved(path)
	}
	for _, service := range p.Services {
		for i, v := range service.Volumes {
			service.Volumes[i].Source = moved(v.Source)
		}
	}
	for _, v := range p.Volumes {
		if device, ok := v.DriverOpts["device"]; ok {
			v.DriverOpts["device"] = moved(device)
		}
	}
	for name, c := range p.Configs {
		c.File = moved(c.File)
		p.Configs[name] = c
	}
	for name, s := range p.Secrets {
		s.File = moved(s.File)
		p.Secrets[name] = s
	}
}

// quoted matches a quoted value in an error text of the loader. The value may be a secret.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"?`)

// withoutValues returns the first line of an error without quoted values. The following lines repeat the
// value.
func withoutValues(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(quoted.ReplaceAllString(text, `"…"`))
}

// withoutLast masks the text after an error's last colon if it occurs in the stack's files: the loader ends
// some errors with the wrong value, without quotes.
func withoutLast(err error, details types.ConfigDetails) error {
	text := err.Error()
	i := strings.LastIndex(text, ": ")
	if i < 0 || len(text)-i-2 < shortest {
		return err
	}
	for _, f := range details.ConfigFiles {
		if strings.Contains(string(f.Content), text[i+2:]) {
			return errors.New(text[:i+2] + "…")
		}
	}
	return err
}

// shortest is the least length of a masked value. Shorter values are not secret and occur in any text.
const shortest = 4

// masked returns an error of the same class with the environment's values masked.
func masked(err error, env map[string]string) error {
	if err == nil || len(env) == 0 {
		return err
	}
	var pairs []string
	values := slices.Collect(maps.Values(env))
	// Mask the longest value first: one may contain another.
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	for _, v := range values {
		for _, part := range append([]string{v}, strings.Split(v, "\n")...) {
			if len(part) >= shortest {
				pairs = append(pairs, part, "…")
			}
		}
	}
	var typed *driver.Error
	if !errors.As(err, &typed) {
		typed = &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	text := typed.Err.Error()
	hidden := strings.NewReplacer(pairs...).Replace(text)
	if hidden == text {
		return err
	}
	return &driver.Error{Class: typed.Class, Op: typed.Op, Err: errors.New(hidden)}
}

// ownEnvironment reads the .env file of a Git source.
func ownEnvironment(dir string, env types.Mapping) error {
	f, err := os.Open(filepath.Join(dir, ".env"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	defer f.Close()
	own, err := dotenv.ParseWithLookup(f, env.Resolve)
	if err != nil {
		return invalid("compose: .env of the repository: %w", withoutValues(err))
	}
	maps.Copy(env, own)
	return nil
}

// Names under which the stack's own `.env` is kept while ours replaces it, and of the marker that there was
// none. An agent that was killed meanwhile restores it at its next start.
const (
	envKept = ".env.persys-kept"
	envNone = ".env.persys-none"
)

// restoreEnvironment undoes writeEnvironment; otherwise it does nothing.
func restoreEnvironment(dir string) error {
	path := filepath.Join(dir, ".env")
	if _, err := os.Stat(filepath.Join(dir, envNone)); err == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.Remove(filepath.Join(dir, envNone))
	}
	if err := os.Rename(filepath.Join(dir, envKept), path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// writeEnvironment appends the workload's environment to the `.env` file, where a stack's own
// `env_file: .env` finds it. done restores the former file.
func writeEnvironment(dir string, env map[string]string) (done func(), err error) {
	if len(env) == 0 {
		return func() {}, nil
	}
	path := filepath.Join(dir, ".env")
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		err = os.Rename(path, filepath.Join(dir, envKept))
	} else {
		err = os.WriteFile(filepath.Join(dir, envNone), nil, 0o600)
	}
	if err != nil {
		return nil, err
	}
	done = func() { _ = restoreEnvironment(dir) } // if this fails, the next call restores it
	var text strings.Builder
	text.Write(before)
	for _, k := range slices.Sorted(maps.Keys(env)) {
		// Single quotes prevent interpolation. A single quote in the value is written in double quotes.
		fmt.Fprintf(&text, "\n%s=%s", k, quoteEnv(env[k]))
	}
	if err := os.WriteFile(path, []byte(text.String()+"\n"), 0o600); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// quoteEnv quotes a value so that Compose reads it back unchanged.
func quoteEnv(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "\n", `\n`, "\r", `\r`).Replace(v) + `"`
}

// configFiles returns the files that COMPOSE_FILE names (separated by ':'), else Compose's default files.
func configFiles(dir, named string) ([]types.ConfigFile, error) {
	var out []types.ConfigFile
	if named != "" {
		for name := range strings.SplitSeq(named, ":") {
			if !filepath.IsLocal(name) {
				return nil, invalid("compose.env[COMPOSE_FILE]: must be paths inside the repository (got %q)", name)
			}
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				return nil, invalid("compose.env[COMPOSE_FILE]: the repository has no file %q", name)
			}
			out = append(out, types.ConfigFile{Filename: filepath.Join(dir, name)})
		}
		return out, nil
	}
	for _, candidates := range [][]string{cli.DefaultFileNames, cli.DefaultOverrideFileNames} {
		for _, name := range candidates {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				out = append(out, types.ConfigFile{Filename: filepath.Join(dir, name)})
				break
			}
		}
		if len(out) == 0 {
			return nil, invalid("compose.git_repo: the repository has none of %s; name the file in compose.env COMPOSE_FILE",
				strings.Join(cli.DefaultFileNames, ", "))
		}
	}
	return out, nil
}

// prepare adds our labels to all resources of a stack, and refuses features that a node does not support.
func (d *Driver) prepare(spec driver.Spec, s *stack) error {
	p := s.project
	ours := driver.Labels(driver.Compose, spec, nil)
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		service := p.Services[name]
		at := "compose: services." + name
		switch {
		case service.Provider != nil:
			return invalid("%s.provider: this agent runs containers only", at)
		case len(service.Models) > 0:
			return invalid("%s.models: this agent has no model runner", at)
		case service.Image == "" && service.Build != nil:
			return invalid("%s.build: nodes do not build images; build and push one, and name it in image", at)
		case service.Image == "":
			return invalid("%s.image: must be set", at)
		}
		img, err := moby.ParseImage(at+".image", service.Image)
		if err != nil {
			return err
		}
		s.images = append(s.images, wanted{img, service.PullPolicy})
		// The driver pulls images beforehand, with the agent's credentials and error classes.
		service.PullPolicy, service.Build = types.PullPolicyNever, nil
		if service.StopGracePeriod == nil {
			grace := types.Duration(d.opt.StopGrace)
			service.StopGracePeriod = &grace
		}
		if spec.Exclusive {
			service.Restart = types.RestartPolicyNo
			if service.Deploy != nil {
				service.Deploy.RestartPolicy = nil
			}
		}
		if limit := memoryLimit(service); limit > 0 && service.MemSwapLimit == 0 {
			// Equal to memory: no swap. The engine's own default is twice the memory.
			service.MemSwapLimit = limit
		}
		// Compose's configuration hash ignores custom labels.
		service.CustomLabels = types.Labels{
			api.ProjectLabel: p.Name, api.ServiceLabel: name, api.VersionLabel: api.ComposeVersion,
			api.WorkingDirLabel: p.WorkingDir, api.ConfigFilesLabel: strings.Join(p.ComposeFiles, ","), api.OneoffLabel: "False",
		}
		maps.Copy(service.CustomLabels, ours)
		for label := range service.Labels {
			if strings.HasPrefix(label, driver.LabelPrefix) {
				delete(service.Labels, label)
			}
		}
		p.Services[name] = service
	}
	for name, n := range p.Networks {
		n.CustomLabels = maps.Clone(ours)
		p.Networks[name] = n
	}
	for name, v := range p.Volumes {
		v.CustomLabels = maps.Clone(ours)
		p.Volumes[name] = v
	}
	return nil
}

// memoryLimit returns the memory limit of a service (mem_limit or deploy.resources.limits.memory), 0 if it has none.
func memoryLimit(s types.ServiceConfig) types.UnitBytes {
	if s.Deploy != nil && s.Deploy.Resources.Limits != nil && s.Deploy.Resources.Limits.MemoryBytes != 0 {
		return s.Deploy.Resources.Limits.MemoryBytes
	}
	return s.MemLimit
}

// pull fetches the images that a stack needs and the engine lacks.
func (d *Driver) pull(ctx context.Context, id driver.ID, s *stack) error {
	done := map[string]bool{}
	for _, w := range s.images {
		if done[w.image.Name] {
			continue
		}
		done[w.image.Name] = true
		if w.policy == types.PullPolicyAlways {
			if err := d.eng.Pull(ctx, id, w.image, d.eng.PullTimeout()); err != nil {
				return err
			}
			continue
		}
		here, err := d.eng.Have(ctx, w.image)
		if err != nil {
			return err
		}
		if here {
			continue
		}
		if w.policy == types.PullPolicyNever || w.policy == types.PullPolicyBuild { // nodes do not build images
			return driver.Errorf(driver.InvalidImage, "pull", "no image %s on this engine, and pull_policy is %s", w.image.Name, w.policy)
		}
		if err := d.eng.Pull(ctx, id, w.image, d.eng.PullTimeout()); err != nil {
			return err
		}
	}
	return nil
}
