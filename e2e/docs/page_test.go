package docs

import (
	"reflect"
	"strings"
	"testing"
)

func TestPagesAreParsed(t *testing.T) {
	page := strings.Join([]string{
		"# A page", "", "```text", "persysctl not a command", "```",
		`<!-- run: on s2; TOKEN from s1: cat /root/a; b; says "up" -->`, "```sh", "a TOKEN", "b", "```",
		"```sh", "c", "```",
	}, "\n")
	// The text "; " separates the rules of a run comment, so the command in a rule cannot contain it.
	if _, err := Parse(page); err == nil || !strings.Contains(err.Error(), `line 6: run comment "b"`) {
		t.Errorf("Parse of an unknown rule returned %v, want an error that names it", err)
	}
	got, err := Parse(strings.Replace(page, "cat /root/a; b;", "cat /root/a;", 1))
	want := []Block{
		{Line: 7, Text: "a TOKEN\nb\n", On: "s2", Says: []string{"up"}, Tokens: []Token{{Word: "TOKEN", On: "s1", Command: "cat /root/a"}}},
		{Line: 11, Text: "c\n"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Parse returned %+v, %v\nwant %+v", got, err, want)
	}
	for text, says := range map[string]string{
		"```\na\n```":                           "line 1: a fence must name its language",
		"```bash\na\n```":                       "a block of commands must be marked sh",
		"```sh\na":                              "not closed",
		"<!-- run: on a -->\ntext\n```sh\n```":  "stand directly above",
		"<!-- run: until up -->\n```sh\na\n```": "invalid syntax",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}
