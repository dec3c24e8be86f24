package moby

import (
	"fmt"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/client/pkg/versions"
)

// LeaveOut removes the options of a service that an engine with this API version would ignore, and returns a
// text about each. name is the name of the service.
func LeaveOut(s *types.ServiceConfig, name, version string) (left []string) {
	if h := s.HealthCheck; h != nil && h.StartInterval != nil && versions.LessThan(version, "1.44") {
		h.StartInterval = nil
		left = append(left, fmt.Sprintf("start_interval of %s is left out: it needs Docker 25 (API 1.44), and this engine has API %s", name, version))
	}
	if len(s.Annotations) > 0 && versions.LessThan(version, "1.43") {
		s.Annotations = nil
		left = append(left, fmt.Sprintf("annotations of %s are left out: they need Docker 24 (API 1.43), and this engine has API %s", name, version))
	}
	if s.MacAddress != "" && versions.LessThan(version, "1.44") {
		s.MacAddress = ""
		left = append(left, fmt.Sprintf("mac_address of %s is left out: it needs Docker 25 (API 1.44), and this engine has API %s", name, version))
	}
	return left
}

// Warn writes a warning to the log. The arguments are key-value pairs, as for slog.
func (e *Engine) Warn(text string, args ...any) { e.log.Warn(text, args...) }
