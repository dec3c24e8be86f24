package stack

import (
	"strings"
	"testing"
)

// FuzzEnvironment parses any text as a .env file. ParseEnv must return variables or an error, and no error may
// contain a value.
func FuzzEnvironment(f *testing.F) {
	f.Add("A=b\nC=\"${A}-x\"\nexport D='e'\n# no\n")
	f.Add("A=${A:-${B:?correct-horse}}\n")
	f.Add("A='correct-horse\nB=\"")
	f.Add("=\n:\n\x00=${")
	f.Fuzz(func(t *testing.T, text string) {
		env, err := ParseEnv([]byte(text), nil)
		if len(env) > strings.Count(text, "\n")+strings.Count(text, "\r")+strings.Count(text, "=")+strings.Count(text, ":")+len(strings.Fields(text)) {
			t.Fatalf("ParseEnv returned %d variables, which is more than this text can set: %q", len(env), text)
		}
		if err != nil && strings.Contains(err.Error(), "correct-horse") {
			t.Fatalf("the error of ParseEnv for %q must not repeat a value, but does: %v", text, err)
		}
	})
}

// FuzzLoad loads any text as a Compose file, without a child process. The load must return a project or faults,
// and must not panic.
func FuzzLoad(f *testing.F) {
	f.Add("services: {a: {image: b, ports: [\"1-2:3\"], env_file: .env}}")
	f.Add("include: [x.yaml]\nservices: {a: {extends: {file: y, service: z}, image: ${A:?b}}}")
	f.Add("x: &x {a: [*x]}\nservices: {a: {<<: *x}}")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "*") > 5 {
			return // skip aliases, which can multiply the content: in this test no child process limits the memory
		}
		out, err := load(t.Context(), Source{Project: "p", Compose: []string{"c.yaml"}, Files: map[string][]byte{"c.yaml": []byte(text)}}, dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Faults) == 0 {
			if _, err := bind(Source{Project: "p"}, out); err != nil {
				t.Fatal(err)
			}
		}
	})
}
