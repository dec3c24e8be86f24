package diskfile

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// MarkSuffix is the suffix of the mark file, which an agent writes beside each disk that it makes
// (contract/state-etcd.md). The file names the owner of the disk.
const MarkSuffix = ".persys-managed"

// Mark is the content of a mark file: the file beside a disk that records the disk's owner and source image.
// The driver reads the mark if no domain's record lists the disk.
type Mark struct {
	Cluster, Node string
	Workload      driver.ID
	// Image is the path of the image from which the disk was made, "" for none. Unsure means that the image
	// is unknown.
	Image  string
	Unsure bool
}

// Keys of the lines "key value" that follow the first three lines of a mark file. Values are quoted, because a
// path may contain any byte, such as a line end.
const (
	nodeKey  = "node "
	imageKey = "image "
)

// Write writes the mark file beside a disk: the time in the first line, as legacy v1 agents write it, then the
// owner.
func (m Mark) Write(path string) error {
	lines := []string{time.Now().UTC().Format(time.RFC3339), m.Cluster, string(m.Workload), nodeKey + strconv.Quote(m.Node)}
	if !m.Unsure {
		lines = append(lines, imageKey+strconv.Quote(m.Image))
	}
	return Write(path+MarkSuffix, []byte(strings.Join(lines, "\n")+"\n"))
}

// Made reports whether the mark file beside the disk path says that an agent of this cluster made the disk for
// this workload. The marks of legacy v1 agents name no workload. For those, the disk's file name must begin
// with the workload's id.
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

// Elsewhere reports whether the mark file beside a disk names a node other than the given one. It names the
// node that made or used the disk last.
func Elsewhere(path, node string) bool {
	lines := markLines(path)
	return len(lines) > 3 && strings.HasPrefix(lines[3], nodeKey) && lines[3] != nodeKey+strconv.Quote(node)
}

// MadeFrom returns the source image of a disk that this node made, as its mark records. The image is unknown
// if a legacy v1 agent, an earlier version or another node made the disk; the path of an image on another
// node may name a different image on this node.
func MadeFrom(path, node string) (image string, known bool) {
	lines := markLines(path)
	if len(lines) < 5 || lines[3] != nodeKey+strconv.Quote(node) {
		return "", false
	}
	text, ok := strings.CutPrefix(lines[4], imageKey)
	image, err := strconv.Unquote(text)
	return image, ok && err == nil
}

// markLines returns the lines of the mark file beside a disk; nil if there is no such file.
func markLines(path string) []string {
	raw, err := os.ReadFile(path + MarkSuffix)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}
