package spec

import (
	"strings"
	"testing"

	"github.com/distribution/reference"
)

func byLibrary(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", err
	}
	return reference.TagNameOnly(named).String(), nil
}

// FuzzReadImage: our parser and the library for image references give the same results.
func FuzzReadImage(f *testing.F) {
	sum := "@sha256:" + strings.Repeat("0a", 32)
	for _, s := range []string{
		"nginx", "nginx:1.27", "nginx" + sum, "nginx:1.27" + sum, "library/nginx", "team/web", "docker.io/nginx", "docker.io/library/nginx",
		"index.docker.io/nginx", "localhost/web", "localhost:5000/web", "registry.example/team/web:1.27", "registry.example:5000/a/b/c",
		"a.b", "a..b/c", "a_b", "a__b", "a--b", "a-b/c", "-a", "a-", "a/", "/a", "a//b", "a:", ":a", "a:b:c", "a:b/c", "x.y:/z", "x.y:1", "x.y:1/z:2",
		"Nginx", "REG.example/web", "web:V1", "web:-1", "web:.1", "web:_1", "web:" + strings.Repeat("t", 128), "web:" + strings.Repeat("t", 129),
		"a@b", "a" + sum + "0", "a" + strings.ToUpper(sum), strings.Repeat("ab", 32), strings.Repeat("ab", 32) + ":x", strings.Repeat("a", 201),
		"", " ", "a b", "é", "[::1]:5000/web", "127.0.0.1:5000/web", "a.-b/c", "a-.b/c", "a_b.c/d", "a.b/c_", "a@sha256:", "a:1@", "x--y.z/w",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, image string) {
		want, werr := byLibrary(image)
		got, err := readImage(image)
		if got != want || (err == nil) != (werr == nil) {
			t.Errorf("readImage reads image %q as %q with error %v, and the library reads it as %q with error %v; want the same", image, got, err, want, werr)
		}
	})
}

// TestPlainImages: references in the common forms are parsed without the library.
func TestPlainImages(t *testing.T) {
	for image, want := range map[string]string{
		"nginx":                          "docker.io/library/nginx:latest",
		"team/web:1.27":                  "docker.io/team/web:1.27",
		"registry.example/team/web:1.27": "registry.example/team/web:1.27",
		"localhost:5000/web":             "localhost:5000/web:latest",
		"ghcr.io/x/y@sha256:" + strings.Repeat("0a", 32): "ghcr.io/x/y@sha256:" + strings.Repeat("0a", 32),
	} {
		if got, ok := plainImage(image); !ok || got != want {
			t.Errorf("plainImage reads image %q as %q, and whether it can: %v; want %q and true", image, got, ok, want)
		}
	}
}
