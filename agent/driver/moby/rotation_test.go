package moby

import "testing"

// TestOutputIsRotatedOnlyWithoutOwnSettings: the driver sets log rotation for a container only if the engine's
// default log driver is json-file and the engine's configuration file has no log settings.
func TestOutputIsRotatedOnlyWithoutOwnSettings(t *testing.T) {
	for _, tt := range []struct {
		name, logging, config string
		want                  bool
	}{
		{"no file", "json-file", "", true},
		{"rotation for json-file if the configuration file has no log settings", "json-file", `{"data-root": "/srv"}`, true},
		{"rotation for json-file if the configuration file is not JSON", "json-file", `{`, true},
		{"another driver", "journald", "", false},
		{"no rotation if the configuration file names a log driver", "json-file", `{"log-driver": "json-file"}`, false},
		{"no rotation if the configuration file has log options", "json-file", `{"log-opts": {"max-size": "1g"}}`, false},
		{"no rotation if the engine has not reported its log driver", "", "", false},
	} {
		got := rotation(tt.logging, []byte(tt.config))
		if (got.Type != "") != tt.want || tt.want && (got.Config["max-size"] != "20m" || got.Config["max-file"] != "3") {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}
