package asks

import (
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is the largest number of symbolic links that Links follows in one path.
const maxLinks = 64

// Links resolves the symbolic links of an absolute path on this machine. The part of the path that does not
// exist stays unchanged. A path with too many links resolves to "/".
func Links(path string) string {
	rest := strings.Split(filepath.Clean(path), "/")[1:]
	at := "/"
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		target, err := os.Readlink(next)
		if err != nil { // stop: the path is not a link, or does not exist
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "/"
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at
}
