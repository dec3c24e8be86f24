package spec

import (
	"strings"
	"testing"
)

func TestLocalData(t *testing.T) {
	const otherFiles = "volumes of the services that the stack takes from other files (include, extends)"
	inline := func(lines ...string) string {
		return "id: s\ncompose:\n  inline: |\n    " + strings.Join(lines, "\n    ") + "\n"
	}
	for _, c := range []struct{ name, kind, text, want string }{
		{"a container with only a bind mount has no local data", TypeContainer, "id: s\ncontainer: {image: x, volumes: [/srv/data:/data]}\n", ""},
		{"of a container's volumes, only the local volume is local data", TypeContainer,
			"id: s\ncontainer: {image: x, managed_volumes: [{name: data, path: /d}, {name: far, driver: nfs, path: /f}, {name: block, driver: ceph-rbd, size: 1Gi, path: /b}]}\n", "volume data"},
		{"a retained volume is local data too", TypeContainer, "id: s\ncontainer: {image: x, managed_volumes: [{name: data, path: /d, retain: Retain}]}\n", "volume data"},
		{"the disks of a virtual machine are local data, sorted by name", TypeVM, "id: s\nvm: {vcpus: 1, memory: 1Gi, disks: [{size: 1Gi, device: vdb}, {size: 2Gi}]}\n", "disk vda; disk vdb"},
		{"a virtual machine's disk in a pool is local data", TypeVM, "id: s\nvm: {vcpus: 1, memory: 1Gi, disks: [{size: 1Gi, pool: fast}]}\n", "disk vda in fast"},
		{"a virtual machine without disks has no local data", TypeVM, "id: s\nvm: {vcpus: 1, memory: 1Gi}\n", ""},
		{"a stack with only tmpfs and absolute bind mounts has no local data", TypeCompose, inline("services: {a: {image: x, tmpfs: /t, volumes: ['/etc/localtime:/etc/localtime:ro', '/srv:/srv']}}"), ""},
		{"a named volume that a service uses is local data", TypeCompose, inline("services: {a: {image: x, volumes: ['db:/var/lib/db']}}", "volumes: {db: {}, unused: {}}"), "volume db"},
		{"a named volume in the long form is local data", TypeCompose, inline("services: {a: {image: x, volumes: [{type: volume, source: db, target: /d}, {type: tmpfs, target: /t}, {type: bind, source: /srv, target: /s}]}}", "volumes: {db: {}}"), "volume db"},
		{"an unnamed volume of a service is local data", TypeCompose, inline("services: {a: {image: x, volumes: [/var/lib/db, {type: volume, target: /e}]}}"), "unnamed volume at /e; unnamed volume at /var/lib/db"},
		{"a writable folder beside the Compose file is local data", TypeCompose, inline("services: {a: {image: x, volumes: ['./data:/d', './conf:/c:ro,z', {type: bind, source: ./more, target: /m}, {type: bind, source: ./fixed, target: /f, read_only: true}]}}"), "folder ./data; folder ./more"},
		{"a stack's volume on a file server is no local data", TypeCompose, inline("services: {a: {image: x, volumes: ['far:/d', 'share:/e']}}", "volumes: {far: {driver_opts: {type: nfs, o: addr=h}}, share: {driver_opts: {type: cifs}}}"), ""},
		{"an external volume of the engine is local data", TypeCompose, inline("services: {a: {image: x, volumes: ['mine:/d']}}", "volumes: {mine: {external: true}}"), "volume mine"},
		{"a managed volume that the Compose file declares as external is listed once", TypeCompose, inline("services: {a: {image: x, volumes: ['data:/d']}}", "volumes: {data: {external: true}}") + "  managed_volumes: [{name: data}]\n", "volume data"},
		{"a managed volume on a file server is no local data", TypeCompose, inline("services: {a: {image: x, volumes: ['data:/d']}}", "volumes: {data: {external: true, name: far}}") + "  managed_volumes: [{name: far, driver: nfs}]\n", ""},
		{"a service that its profile disables has no local data", TypeCompose, inline("services: {a: {image: x, profiles: [p], volumes: ['db:/d']}, b: {image: x}}", "volumes: {db: {}}"), ""},
		{"a service that extends another one may have volumes", TypeCompose, inline("services: {a: {extends: {file: b.yaml, service: b}}}"), otherFiles},
		{"an included file may have volumes", TypeCompose, inline("include: [b.yaml]", "services: {a: {image: x, volumes: ['db:/d']}}", "volumes: {db: {}}"), "volume db; " + otherFiles},
		{"a variable may be a volume", TypeCompose, inline("services: {a: {image: x, volumes: ['${WHERE:-db}:/d']}}"), "volume ${WHERE:-db}"},
		{"a Git repository may name volumes", TypeCompose, "id: s\ncompose: {git: https://example.com/r.git}\n", "volumes of the stack, which only its Git repository lists"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := specOf(t, c.text)
			s.Type = c.kind
			Normalise(s)
			var got []string
			for _, d := range DemandOf("w", s).LocalData {
				name := d.Name
				if d.Pool != "" {
					name += " in " + d.Pool
				}
				got = append(got, name)
			}
			if strings.Join(got, "; ") != c.want {
				t.Errorf("the local data of the workload is %q, want %q", got, c.want)
			}
		})
	}
}

func TestLocalDataStaysInBounds(t *testing.T) {
	var b strings.Builder
	b.WriteString("id: s\ncompose:\n  inline: |\n    services: {a: {image: x, volumes: [")
	for i := range 100 {
		b.WriteString("'v" + strings.Repeat("ü", 100) + memberID("", i) + ":/d" + memberID("", i) + "',")
	}
	b.WriteString("]}}\n")
	s := specOf(t, b.String())
	s.Type = TypeCompose
	list := DemandOf("w", s).LocalData
	if len(list) == 0 || len(list) > 64 {
		t.Fatalf("the demand has %d entries of local data, want 1 to 64", len(list))
	}
	for _, d := range list {
		if len(d.Name) > 160 || !strings.HasPrefix(d.Name, "volume v") && !strings.HasSuffix(d.Name, "more volumes") {
			t.Errorf("a name of local data has %d bytes: %q, want at most 160 bytes and the form of a volume name", len(d.Name), d.Name)
		}
	}
}
