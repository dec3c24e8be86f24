package persysctl

import (
	"testing"

	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestLabelsAndTaintsBecomeOneRequest: `persysctl node label` and `node taint` with several labels or taints must make
// a single request.
func TestLabelsAndTaintsBecomeOneRequest(t *testing.T) {
	for _, c := range []struct {
		args []string
		want proto.Message
	}{
		{[]string{"node", "label", "node-a", "zone=b", "note=", "a.b/c=x=y", "disk-"}, &clusterv1.LabelNodeRequest{
			NodeId: "node-a", Labels: map[string]string{"zone": "b", "note": "", "a.b/c": "x=y"}, Remove: []string{"disk"},
		}},
		{[]string{"node", "taint", "node-a", "gpu=a:NoSchedule", "repair:noexecute:60", "old-"}, &clusterv1.TaintNodeRequest{
			NodeId: "node-a", Remove: []string{"old"},
			Taints: []*controlv1.Taint{{Key: "gpu", Value: "a", Effect: "NoSchedule"}, {Key: "repair", Effect: "NoExecute", Seconds: 60}},
		}},
	} {
		f := start(t, nil)
		if code := newSession(t).run(f, c.args...); code != 0 || len(f.requests) != 1 {
			t.Fatalf("%v: exit code %d, %d requests", c.args, code, len(f.requests))
		}
		got, ok := f.requests[0].(proto.Message)
		switch r := got.(type) {
		case *clusterv1.LabelNodeRequest:
			r.RequestId = ""
		case *clusterv1.TaintNodeRequest:
			r.RequestId = ""
		}
		if !ok || !proto.Equal(got, c.want) {
			t.Errorf("%v sends the request\n%v, want\n%v", c.args, got, c.want)
		}
	}
}
