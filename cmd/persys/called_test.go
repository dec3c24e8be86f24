package main

import (
	"slices"
	"strings"
	"testing"
)

// The name of the link, or the first argument, selects the program that runs and the arguments that it gets.
func TestWhichProgramIsCalled(t *testing.T) {
	for _, tt := range []struct{ line, name, rest string }{
		{"/usr/bin/persys-scheduler --init", "persys-scheduler", "/usr/bin/persys-scheduler --init"},
		{"persys-scheduler recover --yes", "persys-scheduler", "persys-scheduler recover --yes"},
		{"./persys-agent fencer", "persys-agent", "./persys-agent fencer"},
		{"persys-agent agent", "persys-agent", "persys-agent agent"}, // a link to a program takes no program name as its first argument
		{"persys-gateway", "persys-gateway", "persys-gateway"},
		{"persysctl list", "persysctl", "persysctl list"},
		{"persysctl dev", "persysctl", "persysctl dev"},
		{"persysctl.exe list", "persysctl", "persysctl.exe list"},
		{"persys scheduler --init", "persys-scheduler", "persys --init"},
		{"persys scheduler recover", "persys-scheduler", "persys recover"},
		{"persys agent fencer -until-idle", "persys-agent", "persys fencer -until-idle"},
		{"persys gateway", "persys-gateway", "persys"},
		{"persys ctl list", "persysctl", "persys list"},
		{"persys help agent", "persys-agent", "persys --help"},
		{"persys help dev", "persys tools", "persys dev --help"},
		{"persys help list", "persys", "persys help list"},
		{"persys dev --port 0", "persys tools", "persys dev --port 0"},
		{"persys metrics", "persys tools", "persys metrics"},
		{"persys", "persys", "persys"},
		{"persys list", "persys", "persys list"},
		{"persys --insecure agent", "persys", "persys --insecure agent"},
		{"other-name agent", "persys-agent", "other-name"},
	} {
		args := strings.Fields(tt.line)
		name, rest := called(slices.Clone(args))
		if name != tt.name || strings.Join(rest, " ") != tt.rest {
			t.Errorf("%s: called returned %s %q, want %s %q", tt.line, name, rest, tt.name, tt.rest)
		}
	}
	if name, rest := called(nil); name != "persys" || len(rest) != 1 {
		t.Errorf("without arguments called returned %s %q", name, rest)
	}
}
