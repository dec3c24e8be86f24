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

// External says how a service uses a secret or config that has external: true in the Compose file. The value
// of such a secret or config is stored in the cluster and not in the stack. The containers of the service get
// the value as a file.
type External struct {
	Service string
	Kind    string // secret or config
	Key     string // key of the secret or config in the Compose file
	Name    string // name of the secret or config in the cluster
	Target  string // absolute path of the file
	// UID and GID are the owner of the file, as decimal numbers. Mode has its permission bits.
	UID, GID string
	Mode     uint32
	// OnChange is the value of x-on-change in the Compose file: what happens to the containers when the secret
	// or config changes.
	OnChange string

	at []string // path of the reference in the Compose file
}

// onChangeKey is the key of a secret or config in a Compose file that says what happens to the containers when
// the secret or config changes: restart, nothing, or a signal.
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

// externals adds faults for mistakes in the use of external secrets and configs by services.
func (j *judge) externals() {
	taken := map[string]string{} // service and path: what is mounted there
	for _, name := range slices.Sorted(maps.Keys(j.p.Services)) {
		for _, v := range j.p.Services[name].Volumes {
			taken[name+" "+path.Clean(v.Target)] = "a volume"
		}
	}
	type use struct {
		key string
		on  service.OnChange
	}
	first := map[string]use{} // by section and name of the secret or config in the cluster
	onChange := func(section, key string, of types.FileObjectConfig) {
		value, set := of.Extensions[onChangeKey]
		text, ok := value.(string)
		on, known := service.ParseOnChange(text)
		if set && (!ok || !known) {
			j.value(service.OnChangeRule, fmt.Sprint(value), section, key, onChangeKey)
		}
		if !bool(of.External) {
			return
		}
		object := section + " " + cmp.Or(of.Name, key)
		if other, twice := first[object]; twice && other.on != on {
			j.fault(fmt.Sprintf("names the same secret or config of the cluster as %s but has another %s: write the same value in both", other.key, onChangeKey), section, key)
		} else if !twice {
			first[object] = use{key, on}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(j.p.Secrets)) {
		onChange("secrets", key, types.FileObjectConfig(j.p.Secrets[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(j.p.Configs)) {
		onChange("configs", key, types.FileObjectConfig(j.p.Configs[key]))
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
