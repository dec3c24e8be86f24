package stack

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

func TestExternalSecretsAndConfigs(t *testing.T) {
	const text = `
services:
  web:
    image: a
    secrets: [s, own, {source: t, target: sub/x, uid: "7", gid: "8", mode: 0400}, {source: t, target: /etc/t}]
    configs: [c, {source: c, target: /etc/../srv/c}]
  db: {image: b, secrets: [s], deploy: {replicas: 2}}
  off: {image: b, secrets: [s], profiles: [never]}
secrets: {s: {external: true}, t: {external: true, name: other, x-on-change: signal HUP}, own: {environment: COMPOSE_PROJECT_NAME}}
configs: {c: {external: true}}
`
	p, err := NewLoader(Options{}).Load(context.Background(), Source{Project: "p", Compose: []string{"compose.yaml"}, Files: map[string][]byte{"compose.yaml": []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, x := range Externals(p) {
		have = append(have, fmt.Sprintf("%s %s %s %s %s %s:%s %o %s", x.Service, x.Kind, x.Key, x.Name, x.Target, x.UID, x.GID, x.Mode, x.OnChange))
	}
	want := []string{
		"db secret s s /run/secrets/s 0:0 444 ",
		"web secret s s /run/secrets/s 0:0 444 ",
		"web secret t other /run/secrets/sub/x 7:8 400 signal HUP",
		"web secret t other /etc/t 0:0 444 signal HUP",
		"web config c c /c 0:0 444 ",
		"web config c c /srv/c 0:0 444 ",
	}
	if !slices.Equal(have, want) {
		t.Errorf("the services use the external secrets and configs\n%q\nwant\n%q", have, want)
	}
}
