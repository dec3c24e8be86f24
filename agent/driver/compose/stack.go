package compose

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/api/types/container"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/asks"
	stackfile "github.com/persys/compute/stack"
	stackservice "github.com/persys/compute/stack/service"
)

// ProjectName returns the Compose project of a workload.
func ProjectName(id driver.ID) string { return stackfile.ProjectName(string(id)) }

// names returns the possible Compose project names of a workload, the preferred one first: with and without the
// name of the node.
func (d *Driver) names(id driver.ID) []string {
	return []string{ProjectName(id), ProjectName(id) + "--" + ProjectName(driver.ID(d.opt.NodeID))}
}

// Folders of a stack, below the project's folder: one for the relative paths of an inline stack, and one for
// each commit of a Git source.
const (
	inlineDir    = "files"
	gitDir       = "git"
	committedDir = "commit"
)

// Source types of a ComposeSpec; empty means inline.
const sourceGit = "git"

func isGit(c *agentv1.ComposeSpec) bool { return strings.EqualFold(c.GetSourceType(), sourceGit) }

// plain decodes the text of a Compose file, which schedulers send as base64 and other callers as it is. Every
// Compose file contains a colon and base64 never does, so plain can tell them apart.
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

// stack is a workload that was loaded as a Compose project.
type stack struct {
	project *types.Project
	commit  string // commit of the Git source
	repo    string // repository address without credentials
	images  []wanted
	files   []string // folders with files that the stack uses, see lay
}

// wanted is one image that a stack needs, with its pull policy.
type wanted struct {
	image  moby.Image
	policy string
}

// expected returns the number of containers that each service of the stack will have.
func (s *stack) expected() map[string]int {
	out := make(map[string]int, len(s.project.Services))
	for name, service := range s.project.Services {
		out[name] = service.GetScale()
	}
	return out
}

// load loads the stack of a workload. If commit is set, load uses this commit of the Git source, from which the
// stack was deployed before. If commit is empty, load resolves the branch or tag of the source again.
func (d *Driver) load(ctx context.Context, spec driver.Spec, project, commit string) (*stack, error) {
	body := spec.Body.GetCompose()
	out := &stack{}
	source := stackfile.Source{Project: project, Env: body.GetEnv(), Mask: true}
	files, err := filesOf(body)
	if err != nil {
		return nil, err
	}
	if isGit(body) {
		if err := d.fetch(ctx, spec.Body, project, commit, out); err != nil {
			return nil, err
		}
		source.Folder, source.Root = d.committed(project, out.commit), d.checkout(project, out.commit)
		source.DotEnv = true
	} else {
		text, err := plain(body.GetComposeYaml())
		if err != nil {
			return nil, err
		}
		source.Root = filepath.Join(d.folder(project), inlineDir)
		if err := os.MkdirAll(source.Root, 0o700); err != nil {
			return nil, &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
		}
		main := cmp.Or(body.GetMainFile(), composeName)
		source.Compose, source.Files = []string{main}, map[string][]byte{}
		for _, f := range files {
			source.Files[f.Path] = f.Data
		}
		source.Files[main] = []byte(text) // the mounted folder may contain the Compose file itself
	}
	source.Kept = source.Folder
	p, err := d.opt.Loader.Load(ctx, source)
	var faults stackfile.Faults
	var busy *stackfile.Busy
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &faults):
		return nil, invalid("compose: %s", strings.Join(strings.Split(faults.Error(), "\n"), "; "))
	case errors.As(err, &busy):
		return nil, driver.Errorf(driver.RuntimeUnhealthy, "ensure", "compose: %w", err)
	case err != nil:
		return nil, &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	p = p.WithoutUnresolvedOptionalDependencies()
	out.project = p
	p.DisabledServices = nil // The services of profiles that are switched off are dropped. Otherwise Compose would keep their containers.
	if err := contained(p, source.Root); err != nil {
		return nil, err
	}
	if err := d.judge(ctx, spec, p, source.Kept); err != nil {
		return nil, err
	}
	if err := external(p, spec.Volumes); err != nil {
		return nil, err
	}
	if err := memoryFiles(p, body.GetMemoryFiles(), spec.Files); err != nil {
		return nil, err
	}
	if err := d.prepare(spec, out, d.eng.Rotation(ctx)); err != nil {
		return nil, err
	}
	out.files, err = d.lay(p, source.Root, files)
	return out, err
}

// leaveOut removes the options of a stack that an engine with this API version would ignore, and returns a
// text about each.
func leaveOut(p *types.Project, version string) (left []string) {
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s := p.Services[name]
		left = append(left, moby.LeaveOut(&s, name, version)...)
		p.Services[name] = s
	}
	return left
}

// judge returns an error if the policies forbid a resource of this machine, such as a host path, that the
// loaded stack uses. kept is the folder with the files of secrets and configs.
func (d *Driver) judge(ctx context.Context, spec driver.Spec, p *types.Project, kept string) error {
	if spec.Rules == nil {
		return nil
	}
	var managed []string
	for _, v := range spec.Body.GetCompose().GetManagedVolumes() {
		managed = append(managed, v.GetName())
	}
	list, err := asks.Project(p, managed, asks.Links, kept)
	if err != nil {
		return invalid("compose: %w", err)
	}
	if err := spec.Judge(driver.Compose, list, d.eng.Paths(ctx)); err != nil {
		return err
	}
	return d.eng.Signed(ctx, spec, list)
}

// composeName is the name by which errors refer to the Compose file of an inline stack.
const composeName = "compose.yaml"

// contained returns an error if the source of a bind mount leads out of the stack's own folder through
// a symbolic link. The stack's containers can write to that folder and create such links.
func contained(p *types.Project, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	defer root.Close()
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		for i, v := range p.Services[name].Volumes {
			rel, ok := strings.CutPrefix(v.Source, dir+"/")
			if v.Type != types.VolumeTypeBind || !ok {
				continue
			}
			if _, err := root.Stat(rel); err != nil && !errors.Is(err, os.ErrNotExist) {
				return invalid("compose: services.%s.volumes[%d]: ./%s leads out of the stack's folder through a symbolic link, or cannot be read (%w)", name, i, rel, err)
			}
		}
	}
	return nil
}

// prepare adds our labels and defaults to all resources of a stack, and returns an error if the stack uses a
// feature that nodes do not support.
func (d *Driver) prepare(spec driver.Spec, s *stack, rotation container.LogConfig) error {
	p := s.project
	ours, inContainers := driver.Labels(driver.Compose, spec, nil), driver.ContainerLabels(driver.Compose, spec, nil)
	stackfile.EachLabels(p, func(_ []string, labels map[string]string) {
		maps.DeleteFunc(labels, func(key, _ string) bool { return stackservice.ReservedLabel(key) != "" }) // schedulers refuse them, but do not read a stack that is in a Git repository
	})
	awaited := map[string]bool{}
	for _, service := range p.Services {
		for name, on := range service.DependsOn {
			if on.Condition == types.ServiceConditionCompletedSuccessfully {
				awaited[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		service := p.Services[name]
		restart := stackservice.RestartPolicy(service)
		at := "compose: services." + name
		if spec.Body.GetJob() {
			// Schedulers check the restart policy of a job when a stack is applied. But they do not read a
			// stack that is in a Git repository, so the driver checks it here.
			if rule := stackservice.InJob(restart); rule != "" {
				return invalid("%s.restart: %s, got %q", at, rule, restart)
			}
			restart = types.RestartPolicyNo
		}
		img, err := moby.ParseImage(at+".image", service.Image)
		if err != nil {
			return err
		}
		img.Namespace = spec.Body.GetNamespace()
		if err := img.SetPlatform(at+".platform", service.Platform); err != nil {
			return err
		}
		s.images = append(s.images, wanted{img, service.PullPolicy})
		// Compose must not pull images. The driver has already pulled them, because it has the agent's
		// credentials and classifies the errors of a pull.
		service.PullPolicy, service.Build = types.PullPolicyNever, nil
		service.LabelFiles = nil // The loader has already read the label files, and docker-compose v1 does not know this option.
		if service.StopGracePeriod == nil {
			grace := types.Duration(d.opt.StopGrace)
			service.StopGracePeriod = &grace
		} else if *service.StopGracePeriod > types.Duration(policy.MaxStopGrace) {
			// Schedulers refuse a longer grace period when a stack is applied. But they do not read a stack
			// that is in a Git repository, so the driver limits the period here.
			d.log.Warn("stop_grace_period is longer than any cluster allows; it is shortened", "workload", string(spec.ID), "service", name,
				"grace", service.StopGracePeriod.String(), "most", policy.MaxStopGrace)
			grace := types.Duration(policy.MaxStopGrace)
			service.StopGracePeriod = &grace
		}
		if spec.Exclusive {
			service.Restart = types.RestartPolicyNo
			if service.Deploy != nil {
				service.Deploy.RestartPolicy = nil
			}
		}
		service.SecurityOpt = driver.HardenedOptions(service.SecurityOpt, service.Privileged)
		if service.Deploy != nil && service.Deploy.Resources.Limits != nil {
			limits := service.Deploy.Resources.Limits
			service.PidsLimit, limits.Pids = cmp.Or(service.PidsLimit, limits.Pids), 0 // docker-compose v1 does not know the limit in deploy
		}
		service.PidsLimit = cmp.Or(service.PidsLimit, spec.Pids())
		if service.Logging == nil && service.LogDriver == "" && len(service.LogOpt) == 0 && rotation.Type != "" {
			service.Logging = &types.LoggingConfig{Driver: rotation.Type, Options: rotation.Config}
		}
		if limit := stackservice.MemoryLimit(service); limit > 0 && service.MemSwapLimit == 0 {
			// A swap limit equal to the memory limit means no swap. The engine's own default would be twice
			// the memory limit.
			service.MemSwapLimit = limit
		}
		if limit := stackservice.CPULimit(service); limit > 0 && service.CPUShares == 0 {
			service.CPUShares = moby.CPUWeight(limit)
		}
		// Our labels are custom labels, which are not part of the hash by which Compose detects a changed
		// service.
		service.CustomLabels = types.Labels{
			api.ProjectLabel: p.Name, api.ServiceLabel: name, api.VersionLabel: api.ComposeVersion,
			api.WorkingDirLabel: p.WorkingDir, api.ConfigFilesLabel: strings.Join(p.ComposeFiles, ","), api.OneoffLabel: "False",
		}
		maps.Copy(service.CustomLabels, inContainers)
		hooks, err := d.eng.HooksLabel(inContainers, moby.Hooks{PostStart: service.PostStart, PreStop: service.PreStop})
		if err != nil {
			return err
		}
		if hooks != "" {
			delete(service.CustomLabels, driver.LabelHooks)
			service.Labels = maps.Clone(service.Labels)
			if service.Labels == nil {
				service.Labels = types.Labels{}
			}
			service.Labels[driver.LabelHooks] = hooks
			service.PreStop = nil // the driver runs the pre_stop hooks, see stacksOnly
		}
		if restart != "" {
			service.CustomLabels[driver.LabelRestart] = restart
		}
		if awaited[name] {
			service.CustomLabels[driver.LabelAwaited] = "true"
		}
		var optional []string
		for dep, on := range service.DependsOn {
			if !on.Required {
				optional = append(optional, dep)
			}
		}
		if len(optional) > 0 {
			slices.Sort(optional)
			service.CustomLabels[driver.LabelOptional] = strings.Join(optional, ",")
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

// pull fetches the images that a stack needs and the engine lacks.
func (d *Driver) pull(ctx context.Context, id driver.ID, s *stack) error {
	done := map[[2]string]bool{}
	for _, w := range s.images {
		key := [2]string{w.image.Name, w.image.PlatformName()}
		if done[key] {
			continue
		}
		done[key] = true
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
		if w.policy == types.PullPolicyNever || w.policy == types.PullPolicyBuild { // the pull policies never and build: nodes neither pull nor build such an image
			return driver.Errorf(driver.ImageNotOnNode, "pull", "no image %s on this engine, and pull_policy is %s", w.image.Name, w.policy)
		}
		if err := d.eng.Pull(ctx, id, w.image, d.eng.PullTimeout()); err != nil {
			return err
		}
	}
	return nil
}
