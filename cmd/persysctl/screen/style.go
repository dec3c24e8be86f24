// Package screen lays out text for people: tables that fit the width they are
// given, lists of facts, colours, and lines that are drawn again in place. It
// knows nothing of Persys but the words for its states.
package screen

import "strings"

// Style is how a word is shown on a terminal.
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

// Painter adds colours, or does not.
type Painter bool

// Paint shows text in a style.
func (p Painter) Paint(s Style, text string) string {
	if !p || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + sgr[s] + "m" + text + "\x1b[0m"
}

// StateStyle colours the states of workloads, nodes and replicas, and modes. A
// state with a remark ("Ready,cordoned") is never simply good.
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
	case "stopped", "deleting", "deleted":
		return Dim
	}
	return Plain
}

// Clean makes text from elsewhere safe to print in one line: what programs and
// images say must not move the cursor.
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

// control covers C0, DEL, C1, and the marks that reorder text.
func control(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x200e && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}
