package screen

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCutShortensText(t *testing.T) {
	for _, c := range []struct {
		in    string
		n     int
		keeps Part
		want  string
	}{
		{"short", 5, Head, "short"},
		{"a longer text", 8, Head, "a longe…"},
		{"a longer text", 3, Head, "a…"},
		{"registry.example/web:1.2", 8, Tail, "…web:1.2"},
		{"billing-api-production-7", 11, Middle, "billi…ion-7"},
		{"äöüß", 3, Head, "äö…"},
		{"ab", 1, Middle, "…"},
		{"ab", 0, Head, ""},
	} {
		if got := Cut(c.in, c.n, c.keeps); got != c.want || utf8.RuneCountInString(got) > c.n {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestFoldWrapsText(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", []string{""}},
		{"one two three four five", []string{"one two three four", "five"}},
		{strings.Repeat("x", 45), []string{strings.Repeat("x", 20), strings.Repeat("x", 20), "xxxxx"}},
		{"ab " + strings.Repeat("x", 25), []string{"ab", strings.Repeat("x", 20), "xxxxx"}},
	} {
		if got := Fold(c.in, 20); !slices.Equal(got, c.want) {
			t.Errorf("Fold(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

// TestTableKeepsItsWidth: no line of a table is longer than the width, whatever its columns contain.
func TestTableKeepsItsWidth(t *testing.T) {
	long := strings.Repeat("word ", 60)
	table := NewTable(Column{Title: "ID", Gives: 1, Least: 8, Keeps: Middle}, Column{Title: "N", Right: true}, Column{Title: "WHERE", Gives: 2, Least: 6},
		Column{Title: "ALL", Wide: true}, Column{Title: "WHY", Gives: 3, Least: 10})
	table.Add(Text("a"), Text("1"), Text("b"), Text(long), Text("c"))
	table.Add(Text(long), Text("12345"), Text(long), Text(long), Text(long))
	for width := 1; width <= 200; width++ {
		for _, line := range table.Lines(width, false) {
			if n := utf8.RuneCountInString(line); n > width {
				t.Fatalf("a line of the table has %d columns, the limit is %d: %q", n, width, line)
			}
		}
	}
	if wide := table.Lines(0, false); !strings.Contains(wide[0], "ALL") || !strings.Contains(wide[2], strings.TrimSpace(long)) {
		t.Error("text without a width limit was shortened")
	}
}

// TestColourAddsNoWidth: a coloured table without its escape sequences equals the table without colours.
func TestColourAddsNoWidth(t *testing.T) {
	table := NewTable(Column{Title: "STATUS"}, Column{Title: "NEXT"})
	table.Add(State("Running"), Text("x"))
	bare, painted := table.Lines(40, false), table.Lines(40, true)
	for i := range bare {
		p := painted[i]
		for _, s := range sgr {
			p = strings.ReplaceAll(p, "\x1b["+s+"m", "")
		}
		if p = strings.ReplaceAll(p, "\x1b[0m", ""); p != bare[i] {
			t.Errorf("lines %q and %q differ in more than colour", p, bare[i])
		}
	}
}

func TestStatesHaveTheirStyle(t *testing.T) {
	for state, want := range map[string]Style{
		"Running": Good, "Ready": Good, "Ready,cordoned": Warn, "RetryPending": Warn, "Failed": Bad, "NotReady": Bad, "NotReady,cordoned": Bad,
		"Stopped": Dim, "something new": Plain, "": Plain,
	} {
		if got := StateStyle(state); got != want {
			t.Errorf("the style of state %q is %d, want %d", state, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("plain")
	f.Add("\x1b]0;title\x07\r\n\u202eevil")
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsFunc(Clean(s), control) {
			t.Errorf("Clean(%q) = %q", s, Clean(s))
		}
	})
}

func TestLiveDrawsInPlace(t *testing.T) {
	var b strings.Builder
	l := &Live{W: &b}
	l.Draw([]string{"one", "two"})
	l.Draw([]string{"three"})
	if want := "\r\x1b[2Kone\n\r\x1b[2Ktwo\n\x1b[2A\r\x1b[2Kthree\n\x1b[J"; b.String() != want {
		t.Errorf("the output is %q, want %q", b.String(), want)
	}
}
