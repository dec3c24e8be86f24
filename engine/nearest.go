package engine

import "strings"

// Nearest returns the known name that is most similar to a mistyped one, or "" if none is similar. Two names
// are similar if few insertions, deletions, replacements and swaps of adjacent letters turn one into the
// other: at most one such change for every three letters.
func Nearest(name string, known []string) string {
	const longest = 64
	if name == "" || len(name) > longest {
		return ""
	}
	name = strings.ToLower(name)
	best, bestDistance := "", 1+max(1, len(name)/3)
	for _, k := range known {
		if d := distance(name, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

func distance(a, b string) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}
