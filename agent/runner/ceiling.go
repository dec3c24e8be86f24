package runner

import (
	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/document"
)

// Ceiling limits the rights of workloads on this machine, even if the policies in their orders
// allow more.
type Ceiling struct {
	// Policy limits every workload. If Policy is nil, policy.Baseline takes its place for some workloads:
	// those that were ordered by a scheduler with support for policies, in a namespace that users who are not
	// admins may use. Other workloads are then not limited.
	Policy *policy.Policy
	// Private, Protected and Usual are paths that workloads may not mount. They are passed to the fields of
	// driver.Rules with these names, which say when a mount is refused.
	Private, Protected, Usual []string
}

// rules returns the rules that say which resources of the machine a workload may use. They are made from the
// policies in its order and the ceiling of this machine.
func (c *Ceiling) rules(in *core.Intent) (*driver.Rules, error) {
	out := &driver.Rules{
		Private: c.Private, Protected: c.Protected, Usual: c.Usual,
		CPU: in.Traits.Promises[0], Memory: in.Traits.Promises[1], Disk: in.Traits.Promises[2],
	}
	for _, text := range in.Policies {
		p, err := document.Read([]byte(text))
		if err != nil {
			return nil, driver.Errorf(driver.InvalidSpecification, "policy", "a policy in the order is invalid: %w", err)
		}
		out.Policies = append(out.Policies, driver.Rule{Policy: p, Next: "change the workload, or ask an admin for another policy: persysctl policy bind --help"})
	}
	switch {
	case c.Policy != nil:
		out.Open = c.Policy.HostPaths
		out.Policies = append(out.Policies, driver.Rule{Policy: c.Policy, Next: "it is the PERSYS_POLICY of this node: change the workload, or run it on another node"})
	case in.Confined:
		p, _ := policy.Builtin(policy.Baseline)
		out.Policies = append(out.Policies, driver.Rule{Policy: p, Next: "without PERSYS_POLICY, this node allows more only to admins, in namespaces without users, roles and policies: change the workload, or set PERSYS_POLICY on a node"})
	}
	return out, nil
}
