package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/persys/compute/e2e/harness"
)

// containsText searches all files below the folder dir and returns the path of the first file that contains
// text, or "" if no file does.
func containsText(dir, text string) (string, error) {
	found := ""
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte(text)) {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	return found, err
}

// saysOneOf returns nil if the output of a process contains at least one of the texts, otherwise an error for
// testbed.Poll.
func saysOneOf(p *harness.Process, texts ...string) error {
	out, err := p.Output()
	if err != nil {
		return err
	}
	for _, t := range texts {
		if strings.Contains(out, t) {
			return nil
		}
	}
	return fmt.Errorf("program %s has printed none of %q", p.Name, texts)
}
