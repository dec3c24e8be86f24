package volume

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/order"
)

// The kinds of storage, with the names that the contract with legacy v1 peers uses.
const (
	Local = "local"
	NFS   = "nfs"
	Ceph  = "ceph-rbd"
)

// Form is how the data of a volume is stored, such as in a folder. The form of a volume never changes.
type Form string

// The forms of volumes. The records of legacy v1 agents have no form; their volumes have the form Folder.
const (
	Folder Form = "folder" // a plain folder, without size limit
	Image  Form = "image"  // a file or network image that contains a file system, which is mounted
	Disk   Form = "disk"   // a file or network image that a virtual machine uses as a raw disk
)

// Phase is the state of a volume (contract/state-etcd.md, "Volume and Attachment").
type Phase string

// The phases of a volume. A volume is released when its workload has moved to another node or does not use it
// any more.
const (
	Provisioning Phase = "Provisioning"
	Provisioned  Phase = "Provisioned"
	Attached     Phase = "Attached"
	Released     Phase = "Released"
	Retained     Phase = "Retained"
	Deleting     Phase = "Deleting"
	Broken       Phase = "Error"
	// Moving is the phase of a volume that another node has, and that is being copied to this node.
	Moving Phase = "Moving"
)

// Volume is the record of one volume on this machine, with the field names of legacy v1 agents.
type Volume struct {
	ID        string            `json:"id"` // id in the form "<driver>:<name>", outside the default namespace "<driver>:<namespace>~<name>"
	Name      string            `json:"name"`
	Driver    string            `json:"driver"`
	SizeGB    int64             `json:"size_gb"`
	Device    string            `json:"device"`
	StagePath string            `json:"stage_path"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`

	Form   Form   `json:"form,omitempty"`
	Pool   string `json:"pool,omitempty"`
	FSType string `json:"fs_type,omitempty"`
	// Namespace is the namespace whose workloads may use the volume. Records of earlier versions lack this
	// field. A volume with such a record may be used by the workloads that already use it. If there are none,
	// it belongs to the default namespace.
	Namespace string `json:"namespace,omitempty"`
	Retain    bool   `json:"retain,omitempty"`
	// ByHand means that a user created the volume, and not the order of a workload. Only a user
	// deletes it.
	ByHand bool   `json:"by_hand,omitempty"`
	Phase  Phase  `json:"phase,omitempty"`
	Error  string `json:"last_error,omitempty"`
	// Formatting means that mkfs was started and may be incomplete: the device holds no data.
	Formatting bool `json:"formatting,omitempty"`
	// Owner is the workload that used the volume last. When that workload is deleted, the volume is deleted
	// too, unless its policy is to retain it.
	Owner      string    `json:"owner,omitempty"`
	ReleasedAt time.Time `json:"released_at,omitzero"`

	// The fields below are about moves of the volume between nodes (move.go). Copy is the id of the move that made this
	// copy. Aside is the move for which the copy was set aside: nothing uses it. Undone is the last move that was undone.
	// Incoming is the move for which the volume is being copied to this node, and Complete says that the copy is complete.
	Copy     order.Generation `json:"copy,omitzero"`
	Aside    order.Generation `json:"aside,omitzero"`
	Undone   order.Generation `json:"undone,omitzero"`
	Incoming order.Generation `json:"incoming,omitzero"`
	Complete bool             `json:"complete,omitempty"`
	// Empty says that the complete incoming copy has no files.
	Empty bool `json:"empty,omitempty"`
	// Plain is the path of the volume before its copy was set aside.
	Plain string `json:"plain,omitempty"`
}

// In returns the name of the volume's namespace.
func (v *Volume) In() string { return cmp.Or(v.Namespace, defaultNamespace) }

// Kept reports whether the volume stays when its workload is deleted.
func (v *Volume) Kept() bool { return v.Retain || v.ByHand }

// Made reports whether the volume has storage that is not being deleted.
func (v *Volume) Made() bool {
	return v.StagePath != "" && v.Phase != Provisioning && v.Phase != Deleting && (v.Phase != Moving || v.Complete)
}

// Idle reports whether nothing may use this copy: it was set aside for a move, or it has just been copied to this node.
func (v *Volume) Idle() bool { return !v.Aside.IsZero() || v.Phase == Moving }

// Attachment is the record that one workload uses a volume.
type Attachment struct {
	ID         string            `json:"id"` // id in the form "<volume id>:<workload id>"
	VolumeID   string            `json:"volume_id"`
	WorkloadID string            `json:"workload_id"`
	MountPath  string            `json:"mount_path"`
	ReadOnly   bool              `json:"read_only"`
	StagePath  string            `json:"stage_path"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	UpdatedAt  time.Time         `json:"updated_at"`
}

// Store stores the records of volumes. Every call returns after its record is on disk.
type Store interface {
	PutVolume(Volume) error
	DropVolume(id string) error
	PutAttachment(Attachment) error
	DropAttachment(id string) error
}

// Records holds the records that a Store has when the agent starts.
type Records struct {
	Volumes     []Volume
	Attachments []Attachment
}

// namePattern is the pattern of names and ids. It allows no path separators.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// clean returns the file name that legacy v1 agents give to a volume on its storage. It has lower-case letters,
// digits, '-', '_' and '.'; every other character becomes '-'.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, strings.ToLower(name))
}

// stored returns the name of a volume's folder, file or image on its storage. Volumes of the default namespace
// keep the names that legacy v1 agents gave. Other names begin with the namespace and "~", which no volume name
// contains. If the namespace has capital letters, a hash is added, because "Shop" and "shop" are two
// namespaces.
func (v *Volume) stored() string {
	if v.ID == plainID(v.Driver, v.Name) {
		return clean(v.Name)
	}
	in := clean(v.Namespace)
	if in != v.Namespace {
		sum := sha256.Sum256([]byte(v.Namespace))
		in += "~" + hex.EncodeToString(sum[:6])
	}
	return in + "~" + clean(v.Name)
}

// defaultNamespace is the namespace of a workload that names none.
const defaultNamespace = "default"

// idOf returns the id of the volume that has this name in a namespace.
func idOf(namespace, driver, name string) string {
	if namespace != defaultNamespace {
		name = namespace + "~" + name
	}
	return plainID(driver, name)
}

func plainID(driver, name string) string { return driver + ":" + name }

// driverOf returns the volume driver for a name; legacy v1 peers use several spellings of the same driver
// name.
func driverOf(s string) string {
	switch s = strings.ToLower(strings.TrimSpace(s)); s {
	case "":
		return Local
	case "ceph_rbd":
		return Ceph
	}
	return s
}

// request is the parsed entry for one volume in a specification.
type request struct {
	id, name, namespace, driver, pool, fs, mountPath string
	sizeGB                                           int64
	readOnly, retain, byHand                         bool
	form                                             Form
	copy, undone                                     order.Generation // see Volume
}

func invalid(format string, args ...any) error {
	return driver.Errorf(driver.InvalidSpecification, "volume", format, args...)
}

func broken(format string, args ...any) error {
	return driver.Errorf(driver.StorageProvisionFailed, "volume", format, args...)
}

// understand parses the volume with the index i in the specification of a workload; the index is for error
// texts.
func understand(kind driver.Kind, namespace string, i int, s *agentv1.ManagedVolumeSpec) (request, error) {
	at := fmt.Sprintf("%s.managed_volumes[%d]", kind, i)
	r := request{
		name: strings.TrimSpace(s.GetName()), namespace: namespace, driver: driverOf(s.GetDriver()), pool: s.GetPool(),
		fs: strings.ToLower(strings.TrimSpace(s.GetFsType())), mountPath: s.GetMountPath(), sizeGB: s.GetSizeGb(),
		readOnly: s.GetReadOnly(), retain: strings.EqualFold(strings.TrimSpace(s.GetRetainPolicy()), "Retain"), byHand: s.GetByHand(),
		copy: order.GenerationOf(s.GetCopy()), undone: order.GenerationOf(s.GetUndone()),
	}
	if !namePattern.MatchString(r.name) {
		return r, invalid("%s.name: %.140q must match %s", at, r.name, namePattern)
	}
	r.id = idOf(namespace, r.driver, r.name)
	if r.sizeGB < 0 || r.sizeGB > maxSizeGB {
		return r, invalid("%s.size_gb: must be 0 (no limit) to %d (got %d)", at, int64(maxSizeGB), r.sizeGB)
	}
	switch r.driver {
	case Local, NFS, Ceph:
	default:
		return r, invalid("%s.driver: must be local, nfs or ceph-rbd (got %q)", at, s.GetDriver())
	}
	if r.pool != "" && r.driver != Local {
		return r, invalid("%s.pool: only local volumes are in a pool of the node (got %q with driver %s)", at, r.pool, r.driver)
	}
	switch {
	case kind == driver.VM:
		r.form = Disk
	case r.driver == Ceph, r.driver == Local && r.sizeGB > 0:
		r.form = Image
	default:
		r.form = Folder
	}
	if r.form != Folder && r.sizeGB == 0 {
		return r, invalid("%s.size_gb: must be set: a volume of this kind is a disk, which needs a size (volume %q)", at, r.name)
	}
	if r.form == Image {
		switch r.fs {
		case "":
			r.fs = "ext4"
		case "ext4", "xfs":
		default:
			return r, invalid("%s.fs_type: must be ext4 or xfs (got %q)", at, r.fs)
		}
	}
	return r, nil
}

// maxSizeGB bounds the size of one volume, in GB.
const maxSizeGB = 1 << 20

const gib = int64(1) << 30
