package runner

import (
	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/document"
)

// Ceiling limits the rights of workloads on the machine, even if the schedulers allow more.
type Ceiling struct {
	// Policy limits every workload. If Policy is nil, policy.Baseline limits a workload only if a scheduler
	// that knows policies ordered it and its namespace is open to users who are not admins. Other workloads
	// are then not limited.
	Policy *policy.Policy
	// Private, Protected and Usual: see the fields of driver.Rules with these names.
	Private, Protected, Usual []string
}

// rules returns what a workload may ask of the machine: the policies of its order, limited by the ceiling.
func (c *Ceiling) rules(in *core.Intent) (*driver.Rules, error) {
	out := &driver.Rules{
		Private: c.Private, Protected: c.Protected, Usual: c.Usual,
		CPU: in.Traits.Promises[0], Memory: in.Traits.Promises[1], Disk: in.Traits.Promises[2],
	}
	for _, text := range in.Policies {
		p, err := document.Read([]byte(text))
		if err != nil {
			return nil, driver.Errorf(driver.InvalidSpecification, "policy", "of the order: %w", err)
		}
		out.Policies = append(out.Policies, driver.Rule{Policy: p, Next: "change the workload, or ask an admin for another policy: persysctl policy bind --help"})
	}
	switch {
	case c.Policy != nil:
		out.Open = c.Policy.HostPaths
		out.Policies = append(out.Policies, driver.Rule{Policy: c.Policy, Next: "it is the PERSYS_POLICY of this node: change the workload, or run it on another node"})
	case in.Confined:
		p, _ := policy.Builtin(policy.Baseline)
		out.Policies = append(out.Policies, driver.Rule{Policy: p, Next: "this node allows more only to admins in namespaces of their own: change the workload, or set PERSYS_POLICY of a node"})
	}
	return out, nil
}
