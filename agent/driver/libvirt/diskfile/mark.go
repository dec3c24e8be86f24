package diskfile

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// MarkSuffix marks a disk that an agent made (contract/state-etcd.md).
const MarkSuffix = ".persys-managed"

// Mark is the file beside a disk that records its owner and source image, for when no domain names the disk.
type Mark struct {
	Cluster, Node string
	Workload      driver.ID
	// Image is the source image, "" for none. Unsure means that it is unknown.
	Image  string
	Unsure bool
}

// Keys of the lines after the first three. Values are quoted: a path may hold any byte.
const (
	nodeKey  = "node "
	imageKey = "image "
)

// Write writes the mark beside a disk: the time, as legacy v1 agents write it, then the owner.
func (m Mark) Write(path string) error {
	lines := []string{time.Now().UTC().Format(time.RFC3339), m.Cluster, string(m.Workload), nodeKey + strconv.Quote(m.Node)}
	if !m.Unsure {
		lines = append(lines, imageKey+strconv.Quote(m.Image))
	}
	return Write(path+MarkSuffix, []byte(strings.Join(lines, "\n")+"\n"))
}

// Made reports whether the mark beside a disk says that an agent made it for this workload. Marks of
// legacy v1 agents name no workload; then the disk's file name must begin with the workload's id.
func Made(path, cluster string, workload driver.ID) bool {
	lines := markLines(path)
	switch {
	case len(lines) == 0:
		return false
	case len(lines) < 3:
		return strings.HasPrefix(filepath.Base(path), string(workload)+"-")
	}
	return lines[1] == cluster && lines[2] == string(workload)
}

// Elsewhere reports whether the mark beside a disk names another node, which made the disk or took it
// over since.
func Elsewhere(path, node string) bool {
	lines := markLines(path)
	return len(lines) > 3 && strings.HasPrefix(lines[3], nodeKey) && lines[3] != nodeKey+strconv.Quote(node)
}

// MadeFrom returns the source image of a disk that this node made, as its mark records. The image is
// unknown for disks of legacy v1 agents, earlier versions and other nodes, whose paths mean nothing here.
func MadeFrom(path, node string) (image string, known bool) {
	lines := markLines(path)
	if len(lines) < 5 || lines[3] != nodeKey+strconv.Quote(node) {
		return "", false
	}
	text, ok := strings.CutPrefix(lines[4], imageKey)
	image, err := strconv.Unquote(text)
	return image, ok && err == nil
}

// markLines returns the lines of a mark; nil if there is no mark.
func markLines(path string) []string {
	raw, err := os.ReadFile(path + MarkSuffix)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}
