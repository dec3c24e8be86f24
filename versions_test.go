package compute_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/persys/compute/testbed"
)

// TestVersionsOfPackages: each version has a form for Debian and RPM, and one for Alpine.
func TestVersionsOfPackages(t *testing.T) {
	for _, tt := range []struct{ version, deb, apk string }{
		{"v1.2.0", "1.2.0", "1.2.0"},
		{"1.2", "1.2", "1.2"},
		{"v1.0.0-rc1", "1.0.0~rc1", "1.0.0_rc1"},
		{"v1.0.0-rc.2", "1.0.0~rc2", "1.0.0_rc2"},
		{"v0.0.0-20261127093000-0123456789ab", "0.0.0+20261127093000+0123456789ab", "0.0.0_git20261127093000"},
		{"v1.0.0-rc1-20261127093000-abc-dirty", "1.0.0~rc1+20261127093000+abc+dirty", "1.0.0_rc1_git20261127093000"},
		{"v0.0.1-docs", "0.0.1+docs", "0.0.1_git"},
	} {
		for _, form := range []struct {
			args []string
			want string
		}{{[]string{tt.version}, tt.deb}, {[]string{"--apk", tt.version}, tt.apk}} {
			out, err := exec.CommandContext(t.Context(), "hack/package-version.sh", form.args...).Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != form.want {
				t.Errorf("package-version.sh %q: %q (%v), want %q", form.args, got, err, form.want)
			}
		}
	}
	if out, err := exec.CommandContext(t.Context(), "hack/package-version.sh", "nightly").CombinedOutput(); err == nil || !strings.Contains(string(out), "VERSION=nightly: it must begin with numbers") {
		t.Errorf("a version without a number: %v, %s", err, out)
	}
}

// TestVersionsSort: a candidate sorts before its release, and snapshots after their tag and by time.
func TestVersionsSort(t *testing.T) {
	testbed.Program(t, "dpkg")
	order := []string{"v0.0.0-20261127093000-ffffffffffff", "v0.0.0-20261127093001-000000000000", "v0.1.0", "v1.0.0-rc1", "v1.0.0-rc1-20270101000000-abc", "v1.0.0-rc2", "v1.0.0-rc10",
		"v1.0.0", "v1.0.0-20270201000000-fff", "v1.0.0-20270201000001-000", "v1.0.1"}
	former := ""
	for _, version := range order {
		out, err := exec.CommandContext(t.Context(), "hack/package-version.sh", version).Output()
		if err != nil {
			t.Fatal(err)
		}
		form := strings.TrimSpace(string(out))
		if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", former, "lt", form).Run(); former != "" && err != nil {
			t.Errorf("%s does not sort before %s (%v)", former, form, err)
		}
		former = form
	}
}
