package spec

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"strconv"
	"strings"
	"sync"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Sealer seals secrets; *pki.Key implements it.
type Sealer interface {
	// Seal encrypts plaintext and binds it to context; Open needs the same context.
	Seal(plaintext, context []byte) (string, error)
	Open(sealed string, context []byte) ([]byte, error)
	// ContentHash returns a keyed hash, so that a short secret cannot be guessed from its digest without
	// the key.
	ContentHash() hash.Hash
}

// ErrNoKey is returned if the specification holds secrets and there is no key to seal them.
var ErrNoKey = errors.New("the specification holds secrets, and this scheduler has no sealing key")

// contentHeader is the version of the encoding of contents. Content hashes are stored for years and
// compared with newly computed hashes, so a new encoding needs a new header and a new prefix.
const contentHeader = "persys content 1\n"

// Content identifies what a node runs: "c1:" and 64 hex digits. The package comment lists what it
// covers. The specification must be plain (unsealed) and normalised. The key may be nil if there
// are no secrets.
//
// The encoding is a sequence of records (path, kind, value, with the lengths of path and value) in a fixed
// order of fields, with maps sorted by key. A field at its zero value has no record, so a new field does
// not change existing content hashes. A secret is recorded as its keyed hash.
func Content(s *controlv1.WorkloadSpec, key Sealer) (string, error) {
	return contentWith(s, key, fullImage(s.GetContainer().GetImage()))
}

// contentWith is Content for a caller that has parsed the image reference already; image is the full reference.
func contentWith(s *controlv1.WorkloadSpec, key Sealer, image string) (string, error) {
	e := encoders.Get().(*encoder)
	defer e.release()
	e.key = key
	e.buf = append(e.buf, contentHeader...)
	e.text("type", s.GetType())
	e.text("kind", s.GetKind())
	switch s.GetType() {
	case TypeContainer:
		e.container(s, image)
	case TypeCompose:
		e.compose(s.GetCompose())
	case TypeVM:
		e.vm(s)
	}
	e.healthCheck(s.GetHealthCheck())
	e.text("on_unhealthy", s.GetOnUnhealthy())
	var labels map[string]string
	for k, v := range s.GetMetadata() {
		if shownMetadata(k, v) {
			if labels == nil {
				labels = make(map[string]string, len(s.GetMetadata()))
			}
			labels[k] = v
		}
	}
	e.pairs("metadata", labels, false)
	if e.err != nil {
		return "", e.err
	}
	sum := sha256.Sum256(e.buf)
	content := [3 + 2*sha256.Size]byte{'c', '1', ':'}
	hex.Encode(content[3:], sum[:])
	return string(content[:]), nil
}

// encoders is a pool of encoders, so that their buffers are reused.
var encoders = sync.Pool{New: func() any { return &encoder{buf: make([]byte, 0, 1024)} }}

// maxReused is the maximum size in bytes of a buffer that is reused.
const maxReused = 64 << 10

func (e *encoder) release() {
	if cap(e.buf) > maxReused {
		return
	}
	clear(e.buf) // clear the buffer, which may hold private data of a specification
	*e = encoder{buf: e.buf[:0]}
	encoders.Put(e)
}

// shownMetadata reports whether a metadata entry becomes a label of the container. Entries with a blank value
// or a key with our own prefix do not.
func shownMetadata(k, v string) bool {
	return !strings.HasPrefix(k, "persys.") && strings.TrimSpace(v) != ""
}

type encoder struct {
	key Sealer
	mac hash.Hash
	err error
	buf []byte
}

func (e *encoder) record(path string, kind byte, value string) { e.recordAt(path, "", kind, value) }

// recordAt adds a record with the path "path.key", or path if key is empty.
func (e *encoder) recordAt(path, key string, kind byte, value string) {
	n := len(path)
	if key != "" {
		n += 1 + len(key)
	}
	e.buf = binary.AppendUvarint(e.buf, uint64(n))
	e.buf = append(e.buf, path...)
	if key != "" {
		e.buf = append(append(e.buf, '.'), key...)
	}
	e.buf = append(e.buf, kind)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(value)))
	e.buf = append(e.buf, value...)
}

func (e *encoder) text(path, value string) {
	if value != "" {
		e.record(path, 't', value)
	}
}

func (e *encoder) number(path string, v int64) {
	if v != 0 {
		var digits [20]byte
		e.record(path, 'n', string(strconv.AppendInt(digits[:0], v, 10)))
	}
}

func (e *encoder) flag(path string, v bool) {
	if v {
		e.record(path, 'b', "1")
	}
}

// secret adds a record with the keyed hash of path and value. The path is included so that equal secrets in
// two fields have different hashes.
func (e *encoder) secret(path, value string) { e.secretAt(path, "", value) }

func (e *encoder) secretAt(path, key, value string) {
	if value == "" {
		return
	}
	if e.key == nil {
		e.err = ErrNoKey
		return
	}
	if e.mac == nil {
		e.mac = e.key.ContentHash()
	}
	e.mac.Reset()
	e.mac.Write([]byte(path))
	if key != "" {
		e.mac.Write([]byte{'.'})
		e.mac.Write([]byte(key))
	}
	e.mac.Write([]byte{0})
	e.mac.Write([]byte(value))
	var sum [sha256.Size]byte
	e.recordAt(path, key, 's', string(e.mac.Sum(sum[:0])))
}

// pairs adds records for the size of a map and for every key, so that an empty value differs from a missing
// key.
func (e *encoder) pairs(path string, m map[string]string, secret bool) {
	if len(m) == 0 {
		return
	}
	e.recordAt(path, "#", 'n', strconv.Itoa(len(m)))
	for _, k := range sortedKeys(m) {
		e.record(path, 'k', k)
		switch v := m[k]; {
		case v == "":
		case secret:
			e.secretAt(path, k, v)
		default:
			e.recordAt(path, k, 't', v)
		}
	}
}

func (e *encoder) container(s *controlv1.WorkloadSpec, image string) {
	c := s.GetContainer()
	// CPU and memory are part of the content hash, because they become limits of the container.
	e.number("cpu_millicores", s.GetResources().GetCpuMillicores())
	e.number("memory_mb", s.GetResources().GetMemoryMb())
	for _, name := range cdiDevices(s.GetResources()) {
		e.recordAt("counted_devices", name, 'n', strconv.FormatInt(s.GetResources().GetDevices()[name], 10))
	}
	e.text("image", image)
	e.number("command.#", int64(len(c.GetCommand())))
	for _, word := range c.GetCommand() {
		e.record("command", 't', word)
	}
	e.pairs("env", c.GetEnv(), true)
	e.number("ports.#", int64(len(c.GetPorts())))
	for _, p := range c.GetPorts() {
		e.number("ports.host", int64(p.GetHostPort()))
		e.number("ports.container", int64(p.GetContainerPort()))
		e.text("ports.protocol", p.GetProtocol())
	}
	e.number("volumes.#", int64(len(c.GetVolumes())))
	for _, v := range c.GetVolumes() {
		e.text("volumes.host", v.GetHostPath())
		e.text("volumes.container", v.GetContainerPath())
		e.flag("volumes.read_only", v.GetReadOnly())
	}
	// With the policy "" as with "no", the engine does not restart the container, so both are recorded as "no". They
	// differ for the agent: the flag run_once below is set only for "no".
	e.text("restart_policy", orElse(c.GetRestartPolicy(), "no"))
	e.flag("privileged", c.GetPrivileged())
	e.volumes(c.GetManagedVolumes())
	// These fields were added in a later version. When they are unset, they add no record, so that the content
	// hash of older specifications does not change. Defaults of the agents are not part of the content hash, so
	// a new default does not recreate a container.
	e.flag("run_once", c.GetRestartPolicy() == "no")
	e.text("user", c.GetUser())
	e.words("cap_add", c.GetCapAdd())
	e.words("cap_drop", c.GetCapDrop())
	e.words("security_opt", c.GetSecurityOpt())
	e.number("pids_limit", c.GetPidsLimit())
	e.number("stop_grace_period_seconds", int64(c.GetStopGracePeriodSeconds()))
	e.text("stop_signal", c.GetStopSignal())
	for i, p := range c.GetPorts() {
		if p.GetAddress() != "" {
			e.recordAt("ports.address", strconv.Itoa(i), 't', p.GetAddress())
		}
		if p.GetMode() != "" {
			e.recordAt("ports.mode", strconv.Itoa(i), 't', p.GetMode())
		}
	}
	e.options(c)
	e.objects(objectRefs(c))
	e.text("on_change", c.GetOnChange())
}

// words adds records for a list that was added in a later version. An empty list adds no record, so that the
// content hash of older specifications does not change.
func (e *encoder) words(path string, list []string) {
	e.number(path+".#", int64(len(list)))
	for _, w := range list {
		e.record(path, 't', w)
	}
}

func (e *encoder) volumes(volumes []*controlv1.ManagedVolumeSpec) {
	e.number("managed_volumes.#", int64(len(volumes)))
	for _, v := range volumes {
		e.text("managed_volumes.name", v.GetName())
		e.text("managed_volumes.driver", v.GetDriver())
		e.number("managed_volumes.size_gb", v.GetSizeGb())
		e.text("managed_volumes.access_mode", v.GetAccessMode())
		e.text("managed_volumes.fs_type", v.GetFsType())
		e.text("managed_volumes.mount_path", v.GetMountPath())
		e.flag("managed_volumes.read_only", v.GetReadOnly())
		e.text("managed_volumes.retain_policy", v.GetRetainPolicy())
	}
}

func (e *encoder) compose(c *controlv1.ComposeSpec) {
	e.text("source_type", c.GetSourceType())
	e.secret("git_repo", c.GetGitRepo())
	e.text("git_ref", c.GetGitRef())
	e.secret("inline_yaml", c.GetInlineYaml())
	e.pairs("env", c.GetEnv(), true)
	// This field was added in a later version. When it is empty, it adds no record, so that the content hash of
	// older specifications does not change.
	if name := c.GetGitCredentials(); name != "" {
		e.text("git_credentials", name)
	}
	if len(c.GetManagedVolumes()) > 0 {
		e.volumes(c.GetManagedVolumes())
	}
	e.text("bundle", c.GetBundle()) // bundle was added in a later version, so it has no record if it is empty
	e.objects(refsOf(&controlv1.WorkloadSpec{Workload: &controlv1.WorkloadSpec_Compose{Compose: c}}))
}

// vm adds records of the VM that the node gets, so that a VM has the same content hash in the field vm and
// under the reserved metadata key.
func (e *encoder) vm(s *controlv1.WorkloadSpec) {
	v, fromMetadata := vmOf(s)
	if v == nil {
		return
	}
	e.text("name", v.GetName())
	e.number("vcpus", int64(v.GetVcpus()))
	// Older schedulers left the quota out of the content hash. So a VM with a quota that such a scheduler
	// stored is recreated when it is applied again.
	e.number("cpu_millicores", vmQuota(s, v))
	e.number("memory_mb", v.GetMemoryMb())
	e.text("os_image", v.GetOsImage())
	e.number("disks.#", int64(len(v.GetDisks())))
	for i, d := range v.GetDisks() {
		e.text("disks.path", d.GetPath())
		e.text("disks.device", d.GetDevice())
		e.text("disks.format", d.GetFormat())
		e.number("disks.size_gb", d.GetSizeGb())
		e.text("disks.type", d.GetType())
		e.flag("disks.boot", d.GetBoot())
		if !fromMetadata {
			e.text("disks.pool_name", s.GetVm().GetDisks()[i].GetPoolName())
		} else if d.GetPool() != "" { // no record if unset, because this field was added in a later version (see the method compose)
			e.text("disks.pool_name", d.GetPool())
		}
	}
	e.number("networks.#", int64(len(v.GetNetworks())))
	for _, n := range v.GetNetworks() {
		e.text("networks.network", n.GetNetwork())
		e.text("networks.mac_address", n.GetMacAddress())
		e.text("networks.ip_address", n.GetIpAddress())
	}
	e.pairs("vm_metadata", v.GetMetadata(), false)
	for _, part := range cloudInitParts(v.GetCloudInitConfig()) {
		e.secret("cloud_init."+part.name, *part.text)
	}
	if l := v.GetLogin(); l != nil { // login was added in a later version, so it has no record if it is unset (see the method compose)
		e.text("login.user", l.GetUser())
		e.secret("login.password", l.GetPassword())
		for _, k := range l.GetSshAuthorizedKeys() {
			e.text("login.ssh_authorized_keys", k)
		}
	}
	e.volumes(toControlVolumes(v.GetManagedVolumes()))
}

// fullImage returns the full image reference, or the text itself if it is not a valid reference.
func fullImage(image string) string {
	full, err := readImage(image)
	if err != nil {
		return image
	}
	return full
}
