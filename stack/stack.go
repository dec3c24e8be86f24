package stack

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Root is the folder at which the paths of a loaded project start if Source.Root is empty. No machine has
// this folder.
const Root = "/.persys/stack"

// ProjectName returns the Compose project of a workload. It is the workload id if Compose allows that as a
// name (lower-case letters, digits, '-' and '_'). Otherwise other characters are replaced, and 6 hex digits
// of the id's hash are added, so that different ids never share a project.
func ProjectName(id string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, id)
	name = strings.TrimLeft(name, "-_")
	if name == id {
		return name
	}
	sum := sha256.Sum256([]byte(id))
	return strings.TrimLeft(name+"-"+hex.EncodeToString(sum[:3]), "-_")
}

// The maximum sizes of a stack.
const (
	// MaxText is the maximum size of a Compose file, env_file or label_file, in bytes.
	MaxText = 1 << 20
	// maxFiles is the maximum number of files that one load reads.
	maxFiles = 256
	// maxIncludes is the maximum depth to which files include or extend other files.
	maxIncludes = 16
	// maxFaults is the maximum number of faults that one load reports.
	maxFaults = 50
)

// Source holds the input of a load: the files and variables of a stack, and the options of the load. A field
// with the zero value is not used.
type Source struct {
	// Project is the name of the Compose project. If it is empty, the name is the one that Compose would use:
	// COMPOSE_PROJECT_NAME, the key name of the first Compose file, or the name of Folder.
	Project string
	// Folder is the stack's folder on this machine. During a load no other process may write to it.
	Folder string
	// Files are files of the stack's folder that are held in memory, by relative path with slashes. If Folder
	// has a file of the same path, the file in memory is used. If no Folder is given, all files except the
	// Compose files are written to a temporary folder.
	Files map[string][]byte
	// Compose lists the Compose files in the folder, in order. If it is empty, the file names that Compose
	// itself looks for are tried.
	Compose []string
	// Env holds the variables of the stack.
	Env map[string]string
	// DotEnv: the file .env in the stack's folder sets variables too. Variables in Env override those in the
	// file.
	DotEnv bool
	// Shell holds variables of the shell of the stack's author. They override Env, and errors do not mask
	// them.
	Shell map[string]string
	// Root is the absolute folder at which the paths of the loaded project start; if empty, the constant
	// Root.
	Root string
	// Kept is the absolute folder at which the paths of the files of secrets, configs and seccomp profiles
	// start, to which no container may write. If Kept is empty, these paths start at Root.
	Kept string
	// MaxStopGrace is the largest stop_grace_period that a service may have; 0 means no limit.
	MaxStopGrace time.Duration
	// Job: the stack is a job, whose failed runs the schedulers repeat, so its services have no restart policy.
	Job bool
	// Strict is set for a stack that is being applied, and not for one that is stored. With Strict, a fault is also:
	//   - a bind mount whose source does not exist, if it is mounted read-only or has the name of a file (with an
	//     extension). Without Strict the engine makes an empty folder at the missing path.
	//   - a label that only agents or Compose may set. Without Strict the agent removes such labels.
	Strict bool
	// Mask removes values of the stack, which may be secret, from error texts of Compose. Set it if people
	// other than the author read the error.
	Mask bool
}

// Fault is a mistake in a stack. File is the path of the file, relative to the stack's folder.
type Fault struct {
	File string `json:",omitempty"`
	Line int    `json:",omitempty"` // line number from 1; 0 if unknown
	At   string `json:",omitempty"` // keys of the value, such as services.web.ports
	Rule string
}

// String returns "FILE:LINE: PLACE: RULE". For a text without a file it returns "line LINE: …".
func (f Fault) String() string {
	var b strings.Builder
	switch {
	case f.File != "" && f.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", f.File, f.Line)
	case f.File != "":
		b.WriteString(f.File + ": ")
	case f.Line > 0:
		fmt.Fprintf(&b, "line %d: ", f.Line)
	}
	if f.At != "" {
		b.WriteString(f.At + ": ")
	}
	return b.String() + f.Rule
}

// Faults lists the mistakes in a stack. It is the error of a load.
type Faults []Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// add appends a fault, unless it was added before.
func (f *Faults) add(one Fault) {
	if len(*f) < maxFaults && !slices.Contains(*f, one) {
		*f = append(*f, one)
	}
}

// ordered returns the faults sorted by file and line.
func (f Faults) ordered() Faults {
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), strings.Compare(a.At, b.At))
	})
	return f
}

// Busy is the error of a load that could not start in time, because the maximum number of stacks (AtOnce) were
// being loaded.
type Busy struct{ AtOnce int }

func (b *Busy) Error() string {
	return fmt.Sprintf("%d Compose stacks are being checked already, which is the limit; try again in a moment", b.AtOnce)
}
