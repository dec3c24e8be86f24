package persysctl

import (
	"fmt"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// autoscaleCell shows the CPU use of a group, its target and its limits, as "45 % of 70 %, 2 to 10"; "" without an
// autoscaler. Only the leader knows the CPU use.
func autoscaleCell(a *controlv1.AutoscaleStatus) string {
	if a == nil {
		return ""
	}
	use, s := "?", a.GetSettings()
	if a.CpuPercent != nil {
		use = fmt.Sprintf("%.0f %%", a.GetCpuPercent())
	}
	return fmt.Sprintf("%s of %d %%, %d to %d", use, s.GetCpu(), s.GetMin(), s.GetMax())
}

// addAutoscale adds the settings, the measured CPU use and the last decision of a group's autoscaler.
func (c *cli) addAutoscale(f *screen.Facts, a *controlv1.AutoscaleStatus) {
	if a == nil {
		return
	}
	s := a.GetSettings()
	text := fmt.Sprintf("target %d %% CPU, %d to %s", s.GetCpu(), s.GetMin(), screen.Plural(int(s.GetMax()), "member"))
	if a.CpuPercent != nil {
		text += fmt.Sprintf("; now %.0f %%, measured in %d of %d", a.GetCpuPercent(), a.GetMeasured(), a.GetCount())
	}
	f.Add("Autoscale", screen.Text(text))
	switch {
	case a.GetDecision() != "":
		f.Add("Last decision", screen.Text(screen.Join(": ", c.ago(a.GetDecidedAt()), a.GetDecision())))
	default:
		f.Add("Last decision", screen.Text("none yet; only the leader knows it"))
	}
	if a.GetLastChange() != "" {
		f.Add("Last change", screen.Text(screen.Join(": ", c.ago(a.GetChangedAt()), a.GetLastChange())))
	}
}
