package spec

import (
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TestToAgentSkipsReservedMetadata: a reserved label in the metadata is part of the content, but no agent gets it.
func TestToAgentSkipsReservedMetadata(t *testing.T) {
	s := specOf(t, web)
	s.Metadata = map[string]string{"app": "web"}
	plain, err := Content(s, testKey(t))
	if err != nil {
		t.Fatal(err)
	}
	s.Metadata["com.docker.compose.project"] = "shop"
	same(t, toAgent(t, "web", s).GetSpec().GetContainer(), func() *agentv1.ContainerSpec {
		c := toAgent(t, "web", s).GetSpec().GetContainer().CloneVT()
		c.Labels = map[string]string{"app": "web"}
		return c
	}())
	if more, _ := Content(s, testKey(t)); more == plain {
		t.Error("the content hash must depend on every label in the metadata, so that stored hashes stay valid")
	}
}
