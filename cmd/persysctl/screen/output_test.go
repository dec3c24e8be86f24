package screen

import (
	"strings"
	"testing"
)

func TestOutputKeepsColoursOnly(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"text", "a line\twith é and \u00a0\r\n", "a line\twith é and \u00a0\r\n"},
		{"colours", "\x1b[1;31mred\x1b[0m \x1b[38:5:9mx", "\x1b[1;31mred\x1b[0m \x1b[38:5:9mx"},
		{"a cursor movement", "\x1b[2Jgone", "?[2Jgone"},
		{"a window title", "\x1b]0;title\a", "?]0;title?"},
		{"a question to the terminal", "\x1b[6n\x1bc", "?[6n?c"},
		{"a C1 character", "a\u009b2Jb", "a?2Jb"},
		{"bells, backspaces and deletes", "a\a\b\x7f\x00", "a????"},
		{"an escape before a colour", "\x1b\x1b[1mx", "?\x1b[1mx"},
		{"a colour without end", "\x1b[" + strings.Repeat("1", 100) + "m", "?[" + strings.Repeat("1", 100) + "m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, step := range []int{1, 2, len(c.text)} {
				var out strings.Builder
				o := &Output{To: &out}
				for rest := c.text; rest != ""; {
					n := min(step, len(rest))
					if _, err := o.Write([]byte(rest[:n])); err != nil {
						t.Fatal(err)
					}
					rest = rest[n:]
				}
				if out.String() != c.want {
					t.Errorf("written in pieces of %d bytes, the output is %q, want %q", step, out.String(), c.want)
				}
			}
		})
	}
}
