package agentd

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/document"
)

// schedulerPaths are the data folder and the settings folder that the scheduler's operating system package
// creates.
var schedulerPaths = [...]string{"/var/lib/persys/scheduler", "/etc/persys/scheduler.env"}

// settingsDir is the folder of settings and certificates.
const settingsDir = "/etc/persys"

// ceiling returns the policy of this machine (PERSYS_POLICY) and its protected paths. They limit the rights and
// resources that any workload can get on this node.
func (c *Config) ceiling() (agent.Ceiling, error) {
	out := agent.Ceiling{
		Private:   []string{c.StatePath + ".tls", c.StatePath + ".schedulers", c.FencerDir, c.CredsFile, c.ComposeDir, settingsDir},
		Protected: slices.Clone(c.Protected),
		Usual:     slices.Clone(schedulerPaths[:]),
	}
	for _, file := range []string{c.TLSKey, c.CephKeyring} {
		if file != "" {
			out.Private = append(out.Private, file)
		}
	}
	if c.DockerConf != "" {
		out.Private = append(out.Private, filepath.Join(c.DockerConf, "config.json"))
	}
	// Schedulers that a user starts without the package store their data below the user's state folder.
	if base, err := userState(); err == nil {
		out.Usual = append(out.Usual, base)
	}
	for _, list := range [][]string{out.Private, out.Protected, out.Usual} {
		for i, p := range list {
			abs, err := filepath.Abs(p)
			if err != nil {
				return out, fmt.Errorf("PERSYS_PROTECTED_PATHS %q: %w", p, err)
			}
			list[i] = abs
		}
	}
	var err error
	out.Policy, err = c.policy()
	return out, err
}

// policy returns the policy that the setting PERSYS_POLICY names; nil if the setting is empty.
func (c *Config) policy() (*policy.Policy, error) {
	if c.Policy == "" {
		return nil, nil
	}
	if p, ok := policy.Builtin(c.Policy); ok {
		return p, nil
	}
	text, err := os.ReadFile(c.Policy)
	if err != nil {
		return nil, fmt.Errorf("PERSYS_POLICY %q must be %s, %s, %s or a file with a policy (persysctl policy show baseline writes one): %w",
			c.Policy, policy.Privileged, policy.Baseline, policy.Restricted, err)
	}
	p, err := document.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("PERSYS_POLICY %s: %w", c.Policy, err)
	}
	p.Name = cmp.Or(p.Name, strings.TrimSuffix(filepath.Base(c.Policy), filepath.Ext(c.Policy)))
	return p, nil
}
