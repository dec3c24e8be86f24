package bounds

import "strings"

// Clip shortens s to at most n bytes, and leaves out a UTF-8 character that would be split.
func Clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}
