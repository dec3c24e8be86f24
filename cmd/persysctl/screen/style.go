// Package screen lays out text for terminals: tables that fit a width, lists of names and values, colours,
// and lines that are redrawn in place. It knows nothing of Persys except the names of states and their
// colours.
package screen

import "strings"

// Style is the colour and weight of a word on a terminal.
type Style uint8

// The styles.
const (
	Plain Style = iota
	Good
	Warn
	Bad
	Dim
	Bold
)

var sgr = [...]string{Plain: "", Good: "32", Warn: "33", Bad: "31", Dim: "2", Bold: "1"}

// Painter adds colours to text if it is true, and leaves text unchanged if it is false.
type Painter bool

// Paint adds the escape sequences of a style to text.
func (p Painter) Paint(s Style, text string) string {
	if !p || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + sgr[s] + "m" + text + "\x1b[0m"
}

// StateStyle returns the colour for a state of a workload, node or replica, or for a mode. A good state
// with a remark ("Ready,cordoned") is shown as a warning.
func StateStyle(state string) Style {
	word, _, remark := strings.Cut(state, ",")
	switch strings.ToLower(word) {
	case "running", "ready", "alive", "normal", "leader", "succeeded", "success", "completed":
		if remark {
			return Warn
		}
		return Good
	case "pending", "scheduled", "updating", "retrypending", "draining", "suspect", "non-voter", "in_progress", "queued":
		return Warn
	case "failed", "notready", "unknown", "dead", "absent", "degraded", "recovery", "error":
		return Bad
	case "stopped", "stopping", "deleting", "deleted":
		return Dim
	}
	return Plain
}

// Clean makes text from a server safe to print in one line: it replaces control characters, which could move
// the cursor.
func Clean(s string) string {
	if !strings.ContainsFunc(s, control) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case control(r):
			return '?'
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// control reports whether r is a C0 or C1 control character, DEL, or a Unicode mark that changes the
// direction of text.
func control(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x200e && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}
