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
			t.Errorf("for document %q, Locate of the error %s returned\n     %s\nwant %s", c.id, c.refusal, got, c.want)
		}
	}
	if got := (&Document{}).Locate("spec.container.image: x\nservices.a: y"); strings.Contains(got, ":1:") {
		t.Errorf("Locate without a file returns %s, want the text without a position", got)
	}
}

// TestLocateViolationsInSortedLists: the specification that a policy judges is normalised, so its lists are sorted. A
// violation is located at the entry that its author wrote, by its value.
func TestLocateViolationsInSortedLists(t *testing.T) {
	const file = `id: web
container:
  image: nginx
  ports:
  - "9000:80"
  - {host: 22, container: 22, mode: ingress}
  - "127.0.0.1:23:23"
  volumes:
  - /z:/z
  - /etc:/a
  cap_add:
  - SYS_ADMIN
  - chown
  security_opt: [seccomp=unconfined, apparmor=unconfined]
`
	docs, err := Documents("web.yaml", []byte(file), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ refusal, want string }{
		{`container.volumes[0].host_path: "/etc" is not allowed by policy "baseline" (rule host_paths): nothing`, `web.yaml:10:5: container.volumes[1].host_path: `},
		{`container.volumes[1].host_path: "/z" is not allowed by policy "baseline" (rule host_paths): nothing`, `web.yaml:9:5: container.volumes[0].host_path: `},
		{`container.ports[0]: "22/tcp" is not allowed by policy "baseline" (rule ports): 80`, `web.yaml:6:6: container.ports[1]: `},
		{`workload web: container.ports[0]: "23/tcp" is not allowed by policy "baseline" (rule ports): 80`, `web.yaml:7:5: container.ports[2]: `},
		{`container.ports[0]: "127.0.0.1" is not allowed by policy "own" (rule addresses): 10.0.0.1`, `web.yaml:7:5: container.ports[2]: `},
		{`container.cap_add[1]: "SYS_ADMIN" is not allowed by policy "baseline" (rule capabilities): CHOWN`, `web.yaml:12:5: container.cap_add[0]: `},
		{`container.security_opt[1]: "seccomp=unconfined" is not allowed by policy "baseline" (rule security_options): x`, `web.yaml:14:18: container.security_opt[0]: `},
		{`container.volumes[0].host_path: "/gone" is not allowed by policy "baseline" (rule host_paths): nothing`, `web.yaml:9:5: container.volumes[0]`},
		{`container.image: "nginx" is not allowed by policy "own" (rule images): nothing`, `web.yaml:3:10: container.image: `},
	} {
		if got := docs[0].Locate(c.refusal); !strings.HasPrefix(got, c.want) || !strings.Contains(got, "is not allowed") {
			t.Errorf("Locate of the violation %s returned\n     %s\nwant a text that begins with %s", c.refusal, got, c.want)
		}
	}
}
