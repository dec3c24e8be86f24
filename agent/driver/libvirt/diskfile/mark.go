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

// Mark says whose a disk is, and what it was made from: what tells of it when no domain does.
type Mark struct {
	Cluster, Node string
	Workload      driver.ID
	// Image is what it was made from, "" for nothing. Unsure: nobody knows.
	Image  string
	Unsure bool
}

// Keys of the lines after the first three. Values are quoted: a path may hold any byte.
const (
	nodeKey  = "node "
	imageKey = "image "
)

// Write puts the mark beside a disk: the time, as legacy v1 agents write it, then whose it is.
func (m Mark) Write(path string) error {
	lines := []string{time.Now().UTC().Format(time.RFC3339), m.Cluster, string(m.Workload), nodeKey + strconv.Quote(m.Node)}
	if !m.Unsure {
		lines = append(lines, imageKey+strconv.Quote(m.Image))
	}
	return Write(path+MarkSuffix, []byte(strings.Join(lines, "\n")+"\n"))
}

// Made says whether the mark beside a disk is of an agent that made it for this workload. That of an
// Legacy v1 agent names none; it counts if the disk's name begins with the workload's.
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

// Elsewhere says whether the mark beside a disk is of another node: one that made it, or that has taken
// it over since.
func Elsewhere(path, node string) bool {
	lines := markLines(path)
	return len(lines) > 3 && strings.HasPrefix(lines[3], nodeKey) && lines[3] != nodeKey+strconv.Quote(node)
}

// MadeFrom is the image that this node made a disk from, as its mark says. Not known is it of disks that
// Legacy v1 agents, earlier versions and other nodes made: what a path means on those is not told here.
func MadeFrom(path, node string) (image string, known bool) {
	lines := markLines(path)
	if len(lines) < 5 || lines[3] != nodeKey+strconv.Quote(node) {
		return "", false
	}
	text, ok := strings.CutPrefix(lines[4], imageKey)
	image, err := strconv.Unquote(text)
	return image, ok && err == nil
}

// markLines is the text of a mark; none if there is none.
func markLines(path string) []string {
	raw, err := os.ReadFile(path + MarkSuffix)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}
