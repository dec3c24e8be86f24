package store

import (
	"encoding/base64"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSecretsAreSealedOnDisk(t *testing.T) {
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		kind workload.Kind
		spec *agentv1.WorkloadSpec
	}{
		{"the environment of a container is encrypted", workload.Container, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{
			Image: "x", Env: map[string]string{"TOKEN": "hunter2-secret"}}}}},
		{"the environment of a Compose project is encrypted", workload.Compose, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{
			ComposeYaml: "services: {a: {image: x, environment: {TOKEN: hunter2-secret}}}", Env: map[string]string{"TOKEN": "hunter2-secret"}}}}},
		{"the text of a Compose project in base64 is encrypted", workload.Compose, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{
			ComposeYaml: base64.StdEncoding.EncodeToString([]byte("hunter2-secret"))}}}},
		{"the files of a Compose project are encrypted", workload.Compose, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{
			ComposeYaml: "services: {}", Files: []byte("hunter2-secret")}}}},
		{"the repository URL of a Compose project, with credentials, is encrypted", workload.Compose, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{
			SourceType: "git", GitRepo: "https://user:hunter2-secret@git.example/stack.git", GitRef: "main"}}}},
		{"the cloud-init document of a VM is encrypted", workload.VM, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{
			Name: "x", CloudInit: "hunter2-secret", CloudInitConfig: &agentv1.CloudInitConfig{
				UserData: "hunter2-secret", MetaData: "hunter2-secret", NetworkConfig: "hunter2-secret", VendorData: "hunter2-secret"}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			hash, err := spec.Hash(key, c.kind, c.spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			in := record{Intent: core.Intent{ID: "w", Type: c.kind, SpecHash: hash, Body: c.spec}}
			if err := in.seal(key); err != nil {
				t.Fatal(err)
			}
			if raw := string(in.RawSpec); strings.Contains(raw, "hunter2") || strings.Contains(raw, base64.StdEncoding.EncodeToString([]byte("hunter2-secret"))) {
				t.Errorf("the record on disk has the secret in plain text: %s", raw)
			}
			back := in
			back.Body = nil
			if err := back.open(key); err != nil {
				t.Fatal(err)
			}
			if got, err := spec.Hash(key, c.kind, spec.Of(&back.Intent), nil); err != nil || got != in.SpecHash {
				t.Errorf("the intent that was read from the file differs: %v, error %v", back.Body, err)
			}
			other, err := pki.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			if err := back.open(other); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("decrypting the record with another key returned the error %v, want an error", err)
			}
		})
	}
}
