package document

import (
	"reflect"
	"strings"
	"testing"

	"github.com/persys/compute/policy"
)

// TestBuiltinPoliciesRoundTrip checks that every built-in policy can be written and read back unchanged.
func TestBuiltinPoliciesRoundTrip(t *testing.T) {
	for _, p := range policy.Builtins() {
		text, err := Format(p)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse([]byte(text))
		if err != nil {
			t.Fatalf("policy %s must be parsable, but: %v\n%s", p.Name, err, text)
		}
		if !reflect.DeepEqual(p, back) {
			t.Errorf("policy %s must be the same after writing and reading, but is %+v; the document is\n%s", p.Name, back, text)
		}
	}
}

func TestParseRefusesInvalidDocuments(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"an unknown field is refused", "name: x\nprivileged_: true\n", "privileged_"},
		{"an unknown kind of workload is refused", "name: x\nkinds: [pod]\n", `kinds[0]: "pod" is none of container, compose, vm`},
		{"a port above 65535 is refused", "ports: [70000]\n", `ports[0]: "70000" is no port`},
		{"a relative path is refused", "host_paths: [{path: srv}]\n", `host_paths[0].path: "srv"`},
		{"a pattern with a star inside is refused", "images: ['a*b']\n", `images[0]: "a*b" may have * at its end only`},
		{"a default above the limit is refused", "max_memory_mib: 10\ndefault_memory_mib: 20\n", "default_memory_mib: 20"},
		{"a document that is no mapping is refused", "[1, 2]\n", "policy:"},
		{"a document that is too large is refused", strings.Repeat("#", MaxSize+1), "bytes, at most"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse returned error %v, want one that contains %q", err, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, p := range policy.Builtins() {
		text, _ := Format(p)
		f.Add([]byte(text))
	}
	f.Add([]byte("host_paths: [{path: /a/../b}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			if p, err = Read(text); err != nil {
				return
			}
		}
		policy.Judge(p, policy.Workload{Kind: "container", Asks: []policy.Ask{
			{Rule: policy.RuleHostPath, Value: "/etc"}, {Rule: policy.RulePort, Value: policy.PortValue("", "80", "tcp")},
		}})
	})
}

// TestKeysOfImagesAreChecked: if image_keys of a policy has a key that no agent could use, the
// policy is refused.
func TestKeysOfImagesAreChecked(t *testing.T) {
	const ecdsa = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q=="
	for key, want := range map[string]string{ecdsa: "", "-----BEGIN PUBLIC KEY-----": "as one line", "AAAA": "no public key"} {
		_, err := Parse([]byte("name: signed\nkinds: [container]\nusers: ['*']\nimages: ['*']\nimage_keys: ['" + key + "']\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "image_keys[0]") || !strings.Contains(err.Error(), want)) {
			t.Errorf("the key %s: %v, want %q", key, err, want)
		}
	}
}
