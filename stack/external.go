package stack

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/persys/compute/engine"
	"github.com/persys/compute/stack/service"
)

// External is a secret or a config with external: true that a service uses: an object of the cluster. The containers
// of the service get its value as a file.
type External struct {
	Service string
	Kind    string // secret or config
	Key     string // key of the secret or config in the Compose file
	Name    string // name of the object
	Target  string // absolute path of the file
	// UID and GID are the owner of the file, as decimal numbers. Mode are its permission bits.
	UID, GID string
	Mode     uint32
	// OnChange is the extension x-on-change of the secret or config.
	OnChange string

	at []string // path of the reference in the Compose file
}

// onChangeKey is the key of a secret or config of a Compose file that says what a new version does.
const onChangeKey = "x-on-change"

const (
	secretsFolder   = "/run/secrets"
	defaultFileMode = 0o444
	maxFileOwner    = 1<<31 - 1 // largest id of a user that Docker accepts
)

// Externals returns the external secrets and configs that the services of a project use, by service.
func Externals(p *types.Project) (out []External) {
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s := p.Services[name]
		for i, f := range s.Secrets {
			if of := p.Secrets[f.Source]; bool(of.External) {
				x := externalOf(types.FileReferenceConfig(f), types.FileObjectConfig(of), secretsFolder+"/"+f.Source)
				if !path.IsAbs(x.Target) {
					x.Target = path.Join(secretsFolder, x.Target)
				}
				x.Service, x.Kind, x.at = name, "secret", []string{"services", name, "secrets", strconv.Itoa(i)}
				out = append(out, x)
			}
		}
		for i, f := range s.Configs {
			if of := p.Configs[f.Source]; bool(of.External) {
				x := externalOf(types.FileReferenceConfig(f), types.FileObjectConfig(of), "/"+f.Source)
				x.Service, x.Kind, x.at = name, "config", []string{"services", name, "configs", strconv.Itoa(i)}
				out = append(out, x)
			}
		}
	}
	return out
}

func externalOf(f types.FileReferenceConfig, of types.FileObjectConfig, target string) External {
	x := External{Key: f.Source, Name: cmp.Or(of.Name, f.Source), Target: cmp.Or(f.Target, target), UID: cmp.Or(f.UID, "0"), GID: cmp.Or(f.GID, "0"), Mode: defaultFileMode}
	x.OnChange, _ = of.Extensions[onChangeKey].(string) // externals refuses other values
	if path.IsAbs(x.Target) {
		x.Target = path.Clean(x.Target)
	}
	if f.Mode != nil {
		x.Mode = uint32(*f.Mode)
	}
	return x
}

// externals checks how services use external secrets and configs.
func (j *judge) externals() {
	taken := map[string]string{} // service and path: what is mounted there
	for _, name := range slices.Sorted(maps.Keys(j.p.Services)) {
		for _, v := range j.p.Services[name].Volumes {
			taken[name+" "+path.Clean(v.Target)] = "a volume"
		}
	}
	onChange := func(section, name string, of types.Extensions) {
		value, set := of[onChangeKey]
		text, ok := value.(string)
		if _, known := service.ParseOnChange(text); set && (!ok || !known) {
			j.value(service.OnChangeRule, fmt.Sprint(value), section, name, onChangeKey)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.p.Secrets)) {
		onChange("secrets", name, j.p.Secrets[name].Extensions)
	}
	for _, name := range slices.Sorted(maps.Keys(j.p.Configs)) {
		onChange("configs", name, j.p.Configs[name].Extensions)
	}
	for _, x := range Externals(j.p) {
		at := func(key string) []string { return append(x.at[:len(x.at):len(x.at)], key) }
		if rule := engine.MountTarget(x.Target); rule != "" {
			j.value(rule, x.Target, at("target")...)
		} else if other := taken[x.Service+" "+x.Target]; other != "" {
			j.value("is already the path of "+other, x.Target, at("target")...)
		}
		taken[x.Service+" "+x.Target] = x.Kind + " " + x.Key
		for _, id := range []struct{ key, value string }{{"uid", x.UID}, {"gid", x.GID}} {
			if n, err := strconv.ParseUint(id.value, 10, 32); err != nil || n > maxFileOwner {
				j.value(fmt.Sprintf("must be a number from 0 to %d: names of users are known only in the image", maxFileOwner), id.value, at(id.key)...)
			}
		}
		if x.Mode > 0o777 {
			j.value("must be 0 to 0777", "0"+strconv.FormatUint(uint64(x.Mode), 8), at("mode")...)
		}
	}
}
