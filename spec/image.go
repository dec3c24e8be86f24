package spec

import (
	"strings"

	"github.com/distribution/reference"
)

// readImage returns an image reference with registry and tag, so that "nginx" and
// "docker.io/library/nginx:latest" give the same content hash. A library for image references decides which
// references are valid. Its regular expressions take longer than the rest of an apply, so references in the
// common form are parsed here.
func readImage(image string) (string, error) {
	if full, ok := plainImage(image); ok {
		return full, nil
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", err
	}
	return reference.TagNameOnly(named).String(), nil
}

// maxPlain is the maximum length in bytes of a reference that plainImage parses. It is far below the
// library's limit.
const maxPlain = 200

// plainImage parses an image reference of the form [domain/]path[:tag][@sha256:digest] with lower-case names
// and single separators. It returns false for every other reference, valid or not.
func plainImage(image string) (full string, ok bool) {
	if len(image) > maxPlain || len(image) == 64 { // 64 hex digits are an image id and not a name
		return "", false
	}
	name, digest, pinned := strings.Cut(image, "@")
	if pinned {
		sum, ok := strings.CutPrefix(digest, "sha256:")
		if !ok || len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "" {
			return "", false
		}
	}
	prefix := "docker.io/"
	domain, path, slash := strings.Cut(name, "/")
	switch {
	case !slash:
		path, prefix = name, "docker.io/library/"
	case domain == "docker.io" || domain == "index.docker.io" || domain == "localhost":
		return "", false // leave these references to the library
	case strings.ContainsAny(domain, ".:"):
		host, port, hasPort := strings.Cut(domain, ":")
		if hasPort && (port == "" || strings.Trim(port, "0123456789") != "") || !plainName(host, '.', '-', '-') {
			return "", false
		}
		prefix = ""
	default:
		path = name
	}
	repo, tag, tagged := strings.Cut(path, ":")
	if tagged && !plainTag(tag) {
		return "", false
	}
	for rest, more := repo, true; more; {
		var part string
		part, rest, more = strings.Cut(rest, "/")
		if !plainName(part, '.', '_', '-') {
			return "", false
		}
	}
	full = prefix + image
	if !tagged && !pinned {
		full += ":latest"
	}
	return full, true
}

// plainName reports whether s consists of lower-case letters and digits, with single separators between them.
func plainName(s string, separators ...byte) bool {
	last := true // whether the last character was a separator; true at the start, because a name must not begin with one
	for i := 0; i < len(s); i++ {
		c := s[i]
		sep := c == separators[0] || c == separators[1] || c == separators[2]
		if sep == last && sep || !sep && !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9') {
			return false
		}
		last = sep
	}
	return !last
}

func plainTag(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return true
}
