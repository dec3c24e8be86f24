package driver

import (
	"slices"
	"testing"
)

func TestContainersGetNoNewPrivileges(t *testing.T) {
	for _, tt := range []struct {
		name       string
		options    []string
		privileged bool
		want       []string
	}{
		{"a container without security options gets no-new-privileges", nil, false, []string{"no-new-privileges:true"}},
		{"other options stay", []string{"seccomp=unconfined"}, false, []string{"seccomp=unconfined", "no-new-privileges:true"}},
		{"a container that names no-new-privileges keeps its options", []string{"no-new-privileges"}, false, []string{"no-new-privileges"}},
		{"no-new-privileges turned off", []string{"no-new-privileges=false"}, false, []string{"no-new-privileges=false"}},
		{"a privileged container", nil, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := HardenedOptions(tt.options, tt.privileged); !slices.Equal(got, tt.want) {
				t.Errorf("HardenedOptions(%v) = %v, want %v", tt.options, got, tt.want)
			}
		})
	}
}
