package config

import (
	"fmt"
	"io"
	"strings"
)

// Markdown writes the reference table of the settings.
func Markdown(w io.Writer, settings []Setting) error {
	if _, err := io.WriteString(w, "| Variable | Flag | YAML | Type | Default | Meaning |\n|---|---|---|---|---|---|\n"); err != nil {
		return err
	}
	for _, s := range settings {
		flag := s.Flag
		if flag != "" {
			flag = "--" + flag
		}
		meaning := s.Usage
		if s.Rule != "" {
			meaning += " (" + strings.TrimPrefix(s.Rule, "must be ") + ")"
		}
		if s.Secret {
			meaning += "; secret"
		}
		if s.Required {
			meaning += "; required"
		}
		cells := []string{code(strings.Join(s.Env, ", ")), code(flag), code(s.YAML), s.Type, code(s.shownDefault()), meaning}
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")); err != nil {
			return err
		}
	}
	return nil
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func (s Setting) shownDefault() string {
	if s.Secret {
		return ""
	}
	return s.Default
}

// SampleEnv writes an environment file with every variable at its default, commented out.
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
