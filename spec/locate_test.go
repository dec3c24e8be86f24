package spec

import (
	"strings"
	"testing"
)

func TestLocateAddsPositionsToRefusals(t *testing.T) {
	const file = `# two workloads
id: web
container:
  image: nginx
  ports: ["8080:80"]
  env:
    A: b
  volumes:
    - host: /etc
      container: /conf
---
id: shop
compose:
  env: {STAGE: x}
  inline: |
    services:
      db:
        image: db
        volumes:
          - /srv:/data
          - /etc:/conf
---
id: quoted
compose: {inline: "services:\n  db:\n    image: db\n"}
---
id: beside
compose: {file: sub/compose.yaml}
---
name: plain
services:
  db:
    image: db
    privileged: true
`
	beside := "services:\n  db:\n    image: db\n"
	docs, err := Documents("dir/all.yaml", []byte(file), Options{ReadFile: func(string) ([]byte, error) { return []byte(beside), nil }})
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]*Document{}
	for i := range docs {
		byID[docs[i].Request.GetWorkloadId()] = &docs[i]
	}
	for _, c := range []struct{ id, refusal, want string }{
		{"web", "spec.container.ports[0].host_port: is held", "dir/all.yaml:5:11: container.ports[0].host_port: is held"},
		{"web", "container.volumes[0].host_path: /etc: not allowed", "dir/all.yaml:9:13: container.volumes[0].host: /etc: not allowed"},
		{"web", "spec.container.env.A: is bad", "dir/all.yaml:7:5: container.env.A: is bad"},
		{"web", "workload web: container: no CPU limit\ncontainer.image: nginx: not allowed; change it", "dir/all.yaml:4:3: container: no CPU limit\ndir/all.yaml:4:10: container.image: nginx: not allowed; change it"},
		{"web", "resources.memory: 1: too little", "dir/all.yaml:2:1: resources.memory: 1: too little"},
		{"web", "0/3 nodes fit: 3 CPU", "0/3 nodes fit: 3 CPU"},
		{"web", "change the workload, or ask an admin: persysctl policy bind", "change the workload, or ask an admin: persysctl policy bind"},
		{"shop", "spec.compose.inline_yaml: line 3: services.db.image: is wrong", "dir/all.yaml:18:1: services.db.image: is wrong"},
		{"shop", "spec.compose.inline_yaml: more.yaml:3: is wrong", "dir/more.yaml:3:1: is wrong"},
		{"shop", "spec.compose.inline_yaml: is empty", "dir/all.yaml:15:11: compose.inline: is empty"},
		{"shop", "services.db.volumes[1]: /etc: not allowed", "dir/all.yaml:21:1: services.db.volumes[1]: /etc: not allowed"},
		{"shop", "services.db.pids_limit: is needed", "dir/all.yaml:17:1: services.db.pids_limit: is needed"},
		{"quoted", "spec.compose.inline_yaml: line 3: services.db.image: is wrong", "dir/all.yaml:24:19: line 3 of the text: services.db.image: is wrong"},
		{"beside", "services.db.image: is wrong", "dir/sub/compose.yaml:3:1: services.db.image: is wrong"},
		{"beside", "spec.compose.inline_yaml: line 2: is wrong", "dir/sub/compose.yaml:2:1: is wrong"},
		{"beside", "spec.compose.inline_yaml: x.env:2: is wrong", "dir/sub/x.env:2:1: is wrong"},
		{"plain", "services.db.privileged: true: not allowed", "dir/all.yaml:33:1: services.db.privileged: true: not allowed"},
		{"plain", "spec.compose.inline_yaml: line 5: services.db.image: is wrong", "dir/all.yaml:32:1: services.db.image: is wrong"},
	} {
		if got := byID[c.id].Locate(c.refusal); got != c.want {
			t.Errorf("document %s: Locate of %s returned\n     %s\nwant %s", c.id, c.refusal, got, c.want)
		}
	}
	if got := (&Document{}).Locate("spec.container.image: x\nservices.a: y"); strings.Contains(got, ":1:") {
		t.Errorf("Locate without a file returns %s, want the text without a position", got)
	}
}
