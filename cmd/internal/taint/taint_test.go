package taint

import (
	"strings"
	"testing"
)

func TestTaintsAreParsed(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"dedicated=gpu:NoSchedule", "dedicated=gpu:NoSchedule"},
		{"spot:prefernoschedule", "spot:PreferNoSchedule"},
		{" down=true:NoExecute:300 ", "down=true:NoExecute:300"},
		{"down:NoExecute", "down:NoExecute"},
		{"k=a=b:NoSchedule", "k=a=b:NoSchedule"},
		{"k", "must be key=value:"},
		{"=v:NoSchedule", "no key"},
		{"k:Never", `"Never" must be one of NoSchedule, PreferNoSchedule, NoExecute`},
		{"k:NoSchedule:5", "only NoExecute"},
		{"k:NoExecute:-1", "whole number of seconds"},
		{"k:NoExecute:1:2", "must be key=value:"},
	} {
		got, err := Parse(c.text)
		switch {
		case err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("parsing the taint %q returned %v, want %q", c.text, err, c.want)
		case err == nil && Text(got) != c.want:
			t.Errorf("taint %q is parsed as %q, want %q", c.text, Text(got), c.want)
		}
	}
}
