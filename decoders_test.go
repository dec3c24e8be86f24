package compute_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// decoders lists the files that decode input, with their fuzz targets as package.Target. Instead of a target,
// a reason in parentheses is given if the input comes neither from the network nor from a file that another
// program writes.
var decoders = map[string]string{
	"agent/credentials/credentials.go":      "agent/credentials.FuzzFile",
	"agent/driver/compose/program.go":       "(YAML that the Compose library has just written)",
	"agent/driver/compose/record.go":        "(our own file in a 0700 folder; a damaged one is written anew)",
	"agent/driver/libvirt/accel.go":         "(our own file in a 0700 folder; a damaged one is written anew)",
	"agent/driver/libvirt/diskjournal.go":   "(a file of the agent with mode 0600; a damaged file is treated as missing, and each disk is checked by its mark)",
	"agent/driver/libvirt/record.go":        "agent/driver/libvirt.FuzzRecord",
	"agent/driver/libvirt/seed.go":          "agent/driver/libvirt.FuzzSeed",
	"agent/driver/moby/hook.go":             "(a label that the driver itself writes; a damaged one counts as no hooks)",
	"agent/driver/moby/rotation.go":         "(the engine's configuration, which root writes)",
	"agent/driver/sim/store.go":             "(a simulated engine)",
	"agent/fencer/client.go":                "(the answer of the agent's own fencer, over a socket in a 0700 folder)",
	"agent/fencer/fencer.go":                "agent/fencer.FuzzLease",
	"agent/fencer/file.go":                  "agent/fencer.FuzzLease",
	"agent/spec/spec.go":                    "agent/spec.FuzzParse",
	"agent/store/record.go":                 "agent/store.FuzzRecords",
	"agent/store/store.go":                  "agent/store.FuzzRecords",
	"agent/volume/ceph.go":                  "(output of rbd about its images)",
	"cluster/gossip.go":                     "cluster.FuzzHint",
	"cluster/note.go":                       "cluster.FuzzDataFolder",
	"cluster/peer.go":                       "cluster.FuzzPeerCall",
	"cluster/place.go":                      "(the stable store, whose values have checksums)",
	"cluster/snapshots.go":                  "cluster.FuzzDataFolder",
	"cluster/transport.go":                  "cluster.FuzzGreeting",
	"cmd/internal/gatewayd/config.go":       "cmd/internal/gatewayd.FuzzClusterFile",
	"cmd/internal/translate/source.go":      "cmd/internal/translate.FuzzTranslate",
	"cmd/persys/api.go":                     "(a file that is part of the program)",
	"cmd/internal/persysctl/login.go":       "(a file of this program in a 0700 folder, and at most 64 KiB of JSON from the gateway of the user)",
	"cmd/internal/persysctl/webconsole.go":  "(at most 64 KiB of JSON from the gateway of the user)",
	"cmd/persysctl/contexts/contexts.go":    "cmd/persysctl/contexts.FuzzFile",
	"cmd/internal/persysctl/audit.go":       "cmd/internal/persysctl.FuzzAuditFile",
	"cmd/internal/persysctl/output.go":      "(JSON that persysctl has just written)",
	"cmd/persysctl/restconn/conn.go":        "cmd/persysctl/restconn.FuzzAnswer",
	"cmd/persysctl/restconn/routes.go":      "(a file that is part of the program)",
	"cmd/persysctl/restconn/session.go":     "cmd/persysctl/restconn.FuzzSession",
	"cmd/persysctl/restconn/stream.go":      "cmd/persysctl/restconn.FuzzEvents",
	"config/types.go":                       "config.FuzzSources",
	"config/yaml.go":                        "config.FuzzSources",
	"fsm/batch.go":                          "fsm.FuzzDecodeBatch",
	"fsm/receipts.go":                       "(bytes that the package wrote itself, or that a checked snapshot held)",
	"fsm/snapshot.go":                       "fsm.FuzzReadSnapshot",
	"gateway/accounts.go":                   "(reads the issuer of a bearer token to choose the keys; the token is verified before its claims are used)",
	"gateway/login.go":                      "(reads at most 4 KiB of JSON from a cookie, back from the browser that sends it; every field is checked)",
	"gateway/strict.go":                     "gateway.FuzzBody",
	"gateway/webhook.go":                    "gateway.FuzzWebhook",
	"mirror/cursor.go":                      "mirror.FuzzImport",
	"mirror/read.go":                        "mirror.FuzzImport",
	"mirror/shapes.go":                      "mirror.FuzzImport",
	"pki/jointoken.go":                      "pki.FuzzParseJoinToken",
	"pki/identitystore.go":                  "pki.FuzzMembership replica.FuzzRemembered",
	"pki/ring.go":                           "pki.FuzzRing",
	"policy/document/document.go":           "policy/document.FuzzParse",
	"replica/auditsink/exporter.go":         "(a file that the scheduler writes into its data folder)",
	"replica/mirrorspec/fields.go":          "api/strict.FuzzAgainstRuntime",
	"rpc/dial/codec.go":                     "api/strict.FuzzAgainstRuntime",
	"rpc/dial/discover.go":                  "rpc/dial.FuzzCacheFile",
	"rpc/plan.go":                           "api/strict.FuzzAgainstRuntime",
	"rpc/revisions.go":                      "api/strict.FuzzAgainstRuntime",
	"rpc/stopping.go":                       "api/strict.FuzzAgainstRuntime",
	"spec/reapply.go":                       "api/strict.FuzzAgainstRuntime",
	"spec/autoscale.go":                     "api/strict.FuzzAgainstRuntime",
	"spec/composefile/keys.go":              "spec.FuzzCompose",
	"spec/cloudinit.go":                     "spec.FuzzPrepare",
	"spec/diff.go":                          "(JSON that the protobuf library has just written)",
	"spec/seal.go":                          "api/strict.FuzzAgainstRuntime",
	"agent/driver/signature/signature.go":   "agent/driver/signature.FuzzVerify",
	"agent/driver/compose/gitfetch/task.go": "(input that the agent writes to its own child process)",
	"child/child.go":                        "(what a program of ours writes to its own child, and back)",
	"stack/loader.go":                       "(what a program of ours writes to its own child)",
	"stack/load.go":                         "stack.FuzzLoad stack.FuzzEnvironment",
	"stack/refs.go":                         "stack.FuzzLoad",
	"spec/view.go":                          "api/strict.FuzzAgainstRuntime",
	"spec/vm.go":                            "spec.FuzzPrepare",
	"spec/words.go":                         "(files that persysctl reads for its user: env_file)",

	"agent/driver/libvirt/hostcaps/machine.go":  "(output of libvirt about this machine)",
	"agent/driver/libvirt/hostcaps/network.go":  "(output of libvirt about a guest on this machine)",
	"agent/driver/libvirt/hostcaps/pool.go":     "(output of libvirt about a storage pool)",
	"agent/driver/libvirt/diskfile/diskfile.go": "(output of qemu-img about an image)",
	"agent/driver/libvirt/nocloud/nocloud.go":   "agent/driver/libvirt.FuzzSeed",
}

// decodes matches the calls that decode bytes, by package name and function.
var decodes = regexp.MustCompile(`^(json|yaml|proto|protojson|xml|dotenv|gob|asn1)\.(Unmarshal\w*|NewDecoder|Parse\w*)$|\.(UnmarshalVT\w*|UnmarshalOptions)$`)

// TestEveryDecoderIsFuzzed checks that each file that decodes input is listed with a fuzz
// target, and that the target exists and is in the threat model.
func TestEveryDecoderIsFuzzed(t *testing.T) {
	targets := map[string]bool{}
	found := map[string]bool{}
	fuzz := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"api/rest", "bin", "dist", "docs", "e2e", "examples", "sim", "testbed", "tools", "pki/vault/vaulttest"}, path)) {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go"):
			return nil
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			for _, m := range fuzz.FindAllSubmatch(text, -1) {
				targets[filepath.ToSlash(filepath.Dir(path))+"."+string(m[1])] = true
			}
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := "." + s.Sel.Name
			if x, ok := s.X.(*ast.Ident); ok {
				name = x.Name + name
			}
			if decodes.MatchString(name) {
				found[filepath.ToSlash(path)] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 30 || len(targets) < 30 {
		t.Fatalf("only %d decoders and %d targets were found", len(found), len(targets))
	}
	model, err := os.ReadFile("docs/architecture/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		named, ok := decoders[path]
		if !ok {
			t.Errorf("%s decodes input: name its fuzz target in decoders, or a reason in parentheses", path)
			continue
		}
		if strings.HasPrefix(named, "(") {
			continue
		}
		for _, target := range strings.Fields(named) {
			if !targets[target] {
				t.Errorf("%s: there is no target %s", path, target)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(decoders)) {
		if !found[path] {
			t.Errorf("%s decodes nothing: remove it from decoders", path)
		}
	}
	for _, target := range slices.Sorted(maps.Keys(targets)) {
		if name := target[strings.LastIndexByte(target, '.')+1:]; !strings.Contains(string(model), name) {
			t.Errorf("docs/architecture/threat-model.md does not name %s", target)
		}
	}
}
