package policy

import "testing"

func TestSignalKnowsLinuxSignals(t *testing.T) {
	for text, want := range map[string]bool{
		"SIGTERM": true, "sigterm": true, "Quit": true, "9": true, "64": true, "RTMIN": true, "SIGRTMIN+3": true, "rtmax-14": true,
		"": false, "0": false, "65": false, "-1": false, "SIG": false, "SIGTREM": false, "TERM ": false, "RTMIN+16": false,
		"RTMIN-1": false, "RTMIN+": false, "RTMIN+03": false, "RTMAX-0": false,
	} {
		if got := Signal(text); got != want {
			t.Errorf("Signal(%q) = %t", text, got)
		}
	}
}
