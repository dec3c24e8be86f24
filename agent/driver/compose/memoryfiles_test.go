package compose

import (
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TestExternalSecretsBecomeMounts: a service's external secrets become mounts of in-memory files, and its
// other secrets are unchanged. A stack is refused if it names an external secret for which the order has
// no file.
func TestExternalSecretsBecomeMounts(t *testing.T) {
	project := func() *types.Project {
		return &types.Project{
			Services: types.Services{"web": {Name: "web", Secrets: []types.ServiceSecretConfig{{Source: "db"}, {Source: "own"}}, Configs: []types.ServiceConfigObjConfig{{Source: "site"}}}},
			Secrets:  types.Secrets{"db": {Name: "db", External: true}, "own": {Name: "own", Content: "x"}},
			Configs:  types.Configs{"site": {Name: "site", External: true}},
		}
	}
	files := []*agentv1.MemoryFile{{Service: "web", Target: "/run/secrets/db"}, {Service: "web", Target: "/site"}}
	p := project()
	if err := memoryFiles(p, files, []string{"/run/a", "/run/b"}); err != nil {
		t.Fatal(err)
	}
	web := p.Services["web"]
	if len(web.Volumes) != 2 || web.Volumes[0].Source != "/run/a" || web.Volumes[1].Target != "/site" || !web.Volumes[0].ReadOnly || bool(web.Volumes[0].Bind.CreateHostPath) {
		t.Errorf("the service has the mounts %+v, want its own and one for each file in memory", web.Volumes)
	}
	if len(web.Secrets) != 1 || web.Secrets[0].Source != "own" || len(web.Configs) != 0 || len(p.Secrets) != 1 || len(p.Configs) != 0 {
		t.Errorf("Compose still gets the secrets %v and configs %v of the service, and the secrets %v and configs %v of the file", web.Secrets, web.Configs, p.Secrets, p.Configs)
	}
	if err := memoryFiles(project(), files[:1], []string{"/run/a"}); err == nil || !strings.Contains(err.Error(), `config "site" with external: true has no value here`) {
		t.Errorf("the order has no file for an external config: memoryFiles returned %v, want an error that names the config", err)
	}
}
