package config

import (
	"fmt"
	"io"
	"strings"
)

func (s Setting) shownDefault() string {
	if s.Secret {
		return ""
	}
	return s.Default
}

// SampleEnv writes an environment file with every variable and its default, each commented out.
func SampleEnv(w io.Writer, settings []Setting) error {
	for _, s := range settings {
		if len(s.Env) == 0 {
			continue
		}
		rule := ""
		if s.Rule != "" {
			rule = " (" + strings.TrimPrefix(s.Rule, "must be ") + ")"
		}
		if _, err := fmt.Fprintf(w, "# %s%s\n#%s=%s\n", s.Usage, rule, s.Env[0], s.shownDefault()); err != nil {
			return err
		}
	}
	return nil
}
