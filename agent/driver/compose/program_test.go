package compose

import "testing"

// The key "required" of a dependency exists since Compose 2.20. Older commands refuse a file that has it.
func TestVersionsOfComposeWithoutOptionalDependencies(t *testing.T) {
	for version, want := range map[string]bool{
		"1.29.2\n": true, "2.0.0\n": true, "v2.17.2\n": true, "2.19.1": true, "2.3.3+ds1\n": true,
		"2.20.0\n": false, "v2.20.0-desktop.1\n": false, "2.100.1\n": false, "5.0.0\n": false, "10.1\n": false, "": false, "dev\n": false,
	} {
		if got := beforeOptional(version); got != want {
			t.Errorf("beforeOptional(%q) = %t, want %t", version, got, want)
		}
	}
}
