package persysctl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// PutObject answers with the size of the value as the number of the version.
func (f *fake) PutObject(_ context.Context, req *clusterv1.PutObjectRequest) (*clusterv1.ObjectResponse, error) {
	return &clusterv1.ObjectResponse{
		Version: uint64(len(req.GetData())), WorkloadIds: []string{"web-0", "web-1"}, Warnings: []string{"db keeps the former version: over quota"}, Index: 43,
	}, nil
}

func (f *fake) ShowSecret(_ context.Context, req *clusterv1.GetObjectValueRequest) (*clusterv1.GetObjectValueResponse, error) {
	return &clusterv1.GetObjectValueResponse{Data: []byte("s3cret of " + req.GetNamespace()), Version: 3}, nil
}

func (f *fake) GetConfig(context.Context, *clusterv1.GetObjectValueRequest) (*clusterv1.GetObjectValueResponse, error) {
	return &clusterv1.GetObjectValueResponse{Data: []byte("a\x1b[2Jb"), Version: 1}, nil
}

func TestSecretsOnTheCommandLine(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name     string
		in       string
		terminal bool
		args     []string
		code     int
		says     string
	}{
		{"a file", "", false, []string{"secret", "put", "db", "--from-file", file("five", 5)}, exitOK, "db version 5\nweb-0, web-1 updated to the new version"},
		{"a literal", "", false, []string{"config", "put", "c", "--from-literal", "four"}, exitOK, "c version 4"},
		{"standard input", "sixsix", false, []string{"secret", "put", "db", "-"}, exitOK, "db version 6"},
		{"an empty value", "", false, []string{"secret", "put", "db", "--from-literal", ""}, exitOK, "db version 0"},
		{"a warning", "", false, []string{"config", "put", "c", "--from-literal", "x"}, exitOK, "warning: db keeps the former version: over quota"},
		{"no source", "", false, []string{"secret", "put", "db"}, exitUsage, "exactly one of --from-file FILE"},
		{"two sources", "", false, []string{"secret", "put", "db", "-", "--from-literal", "x"}, exitUsage, "exactly one of"},
		{"a value as argument", "", false, []string{"secret", "put", "db", "hunter2"}, exitUsage, "the value is not an argument"},
		{"2 MiB", "", false, []string{"secret", "put", "db", "--from-file", file("large", 2<<20)}, exitUsage, "has more than 524288 bytes"},
		{"a missing file", "", false, []string{"secret", "put", "db", "--from-file", dir + "/none"}, exitUsage, "no such file"},
		{"a secret without --show", "", false, []string{"secret", "get", "db"}, exitUsage, "only with --show"},
		{"a secret to a file", "", false, []string{"secret", "get", "db", "--show"}, exitOK, "s3cret of default"},
		{"a secret to a terminal", "", true, []string{"secret", "get", "db", "--show"}, exitUsage, "is a terminal"},
		{"a secret to a terminal with --force", "", true, []string{"secret", "get", "db", "--show", "--force", "-n", "shop"}, exitOK, "s3cret of shop"},
		{"control characters to a terminal", "", true, []string{"config", "get", "c"}, exitUsage, "control characters"},
		{"control characters to a file", "", false, []string{"config", "get", "c"}, exitOK, "a\x1b[2Jb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			s.in, s.outTerm = strings.NewReader(c.in), c.terminal
			code := s.run(f, c.args...)
			if all := s.stdout.String() + s.stderr.String(); code != c.code || !strings.Contains(all, c.says) || strings.Contains(all, "hunter2") {
				t.Errorf("the exit code is %d, want %d, and the output must contain %q: %s", code, c.code, c.says, all)
			}
		})
	}
}
