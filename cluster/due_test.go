package cluster

import "testing"

func TestSnapshotDue(t *testing.T) {
	const mib = 1 << 20
	timing := Timing{}.withDefaults()
	for _, c := range []struct {
		fact                 string
		entries, bytes, last int64
		want                 bool
	}{
		{"few entries and few bytes", 8191, 127 * mib, 0, false},
		{"many small entries", 8192, 1 * mib, 0, true},
		{"few large entries", 10, 128 * mib, 0, true},
		{"many entries over a small snapshot", 8192, 1 * mib, 16 * mib, true},
		{"many entries of less than half of a large snapshot", 100_000, 63 * mib, 128 * mib, false},
		{"entries of half of a large snapshot", 100_000, 64 * mib, 128 * mib, true},
		{"entries of a quarter of a very large snapshot", 100_000, 128 * mib, 512 * mib, false},
	} {
		t.Run(c.fact, func(t *testing.T) {
			if got := timing.snapshotDue(c.entries, c.bytes, c.last); got != c.want {
				t.Errorf("due: %t, want %t", got, c.want)
			}
		})
	}
}
