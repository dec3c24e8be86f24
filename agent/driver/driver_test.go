package driver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGenerationsAreParsedAndPrinted(t *testing.T) {
	g := driver.Generation{Incarnation: 1763, Sequence: 42}
	got, err := driver.ParseGeneration(g.String())
	if err != nil || got != g {
		t.Errorf("ParseGeneration(%q) = %v, %v", g, got, err)
	}
	for _, bad := range []string{"", "1", "1.", ".1", "1.x", "-1.2", "1.2.3"} {
		if got, err := driver.ParseGeneration(bad); err == nil {
			t.Errorf("ParseGeneration(%q) = %v, want an error", bad, got)
		}
	}
	order := []driver.Generation{{}, {Sequence: 9}, {Incarnation: 1}, {Incarnation: 1, Sequence: 1}, {Incarnation: 2}}
	if !slices.IsSortedFunc(order, func(a, b driver.Generation) int {
		if a.Less(b) {
			return -1
		}
		return 1
	}) {
		t.Errorf("Less does not sort the generations %v in ascending order", order)
	}
}

func TestLabelsDecideOwnership(t *testing.T) {
	id := driver.Identity{ClusterID: "c1", NodeID: "n1", Owns: func(id driver.ID) bool { return id == "mine" }}
	for _, c := range []struct {
		name                    string
		workload, cluster, node string
		unmanaged               bool
		want                    driver.Ownership
	}{
		{name: "our labels", workload: "w", cluster: "c1", node: "n1", want: driver.Owned},
		{name: "labels with another node of the cluster", workload: "w", cluster: "c1", node: "n2", want: driver.Sibling},
		{name: "labels with another cluster and the same node name", workload: "w", cluster: "c2", node: "n1", want: driver.Foreign},
		{name: "no node label, and the store lists the workload", workload: "mine", want: driver.Claimed},
		{name: "no node label, our cluster, and the store lists the workload", workload: "mine", cluster: "c1", want: driver.Claimed},
		{name: "no node label, another cluster, and the store lists the workload", workload: "mine", cluster: "c2", want: driver.Foreign},
		{name: "no node, unclaimed", workload: "w", want: driver.Foreign},
		{name: "a node label without a cluster label", workload: "mine", node: "n1", want: driver.Foreign},
		{name: "no workload", cluster: "c1", node: "n1", want: driver.Foreign},
		{name: "not managed", workload: "w", cluster: "c1", node: "n1", unmanaged: true, want: driver.Foreign},
	} {
		labels := map[string]string{
			driver.LabelManaged: "true", driver.LabelWorkload: c.workload, driver.LabelCluster: c.cluster, driver.LabelNode: c.node,
		}
		if c.unmanaged {
			delete(labels, driver.LabelManaged)
		}
		if got := id.Of(labels); got != c.want {
			t.Errorf("%s: Of returned the ownership %d, want %d", c.name, got, c.want)
		}
	}
}

// The contract has two tables, which map each error class to a cause (whether another node may help) and to the
// reason in reports. The test checks that the code maps each class as the tables do. A new class must be added
// here.
func TestEveryErrorClassHasACauseAndAReason(t *testing.T) {
	type row struct {
		cause  driver.Cause
		reason string
	}
	want := map[driver.Class]row{
		driver.ImagePullTimeout:       {driver.Passing, "IMAGE_PULL_FAILED"},
		driver.ImagePullAuthFailed:    {driver.Passing, "IMAGE_PULL_FAILED"},
		driver.InvalidImage:           {driver.Final, "IMAGE_NOT_FOUND"},
		driver.NetworkTimeout:         {driver.Passing, "NETWORK_ERROR"},
		driver.NetworkUnreachable:     {driver.Passing, "NETWORK_ERROR"},
		driver.DNSResolutionFailed:    {driver.Passing, "NETWORK_ERROR"},
		driver.InsufficientResources:  {driver.Passing, "INSUFFICIENT_RESOURCES"},
		driver.StorageFull:            {driver.Passing, "STORAGE_ERROR"},
		driver.ResourceQuotaExceeded:  {driver.OfProgram, "INSUFFICIENT_RESOURCES"},
		driver.InvalidSpecification:   {driver.Final, "INVALID_SPEC"},
		driver.InvalidConfiguration:   {driver.Final, "INVALID_SPEC"},
		driver.PortBindConflict:       {driver.Passing, "INVALID_SPEC"},
		driver.RuntimeError:           {driver.OfProgram, "RUNTIME_ERROR"},
		driver.RuntimeUnhealthy:       {driver.Passing, "RUNTIME_ERROR"},
		driver.UnknownError:           {driver.OfProgram, "RUNTIME_ERROR"},
		driver.RuntimeResourceMissing: {driver.Passing, "RUNTIME_ERROR"},
		driver.StorageProvisionFailed: {driver.Passing, "STORAGE_ERROR"},
		driver.StorageAttachFailed:    {driver.Passing, "STORAGE_ERROR"},
		driver.CloudInitInvalid:       {driver.Final, "INVALID_SPEC"},
		driver.NameConflict:           {driver.Passing, "INVALID_SPEC"},
		driver.ImageNotOnNode:         {driver.Passing, "IMAGE_NOT_FOUND"},
	}
	if len(want) != len(driver.Classes()) {
		t.Errorf("package driver has %d error classes, the tables of the contract have %d", len(driver.Classes()), len(want))
	}
	for _, c := range driver.Classes() {
		if got := (row{c.Cause(), c.FailureReason(driver.Container)}); got != want[c] {
			t.Errorf("error class %s has the cause and the report's reason %+v, want %+v as in the contract", c, got, want[c])
		}
	}
	if got := driver.RuntimeError.FailureReason(driver.VM); got != "VM_BOOT_FAILED" {
		t.Errorf("a RuntimeError of a VM is reported with the reason %s, want VM_BOOT_FAILED", got)
	}
}

func TestErrorsGetTheirClass(t *testing.T) {
	for _, c := range []struct {
		err  error
		want driver.Class
	}{
		{nil, ""},
		{errors.New("image not found: no space left"), driver.UnknownError}, // the class must come from the error's type, not from its text
		{fmt.Errorf("apply: %w", driver.Errorf(driver.InvalidImage, "pull", "x")), driver.InvalidImage},
		{&os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}, driver.StorageFull},
		{&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}, driver.PortBindConflict},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, driver.NetworkUnreachable},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}, driver.DNSResolutionFailed},
		{context.DeadlineExceeded, driver.NetworkTimeout},
		{io.ErrUnexpectedEOF, driver.NetworkUnreachable},
	} {
		if got := driver.ClassOf(c.err); got != c.want {
			t.Errorf("ClassOf(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}

func TestBoundCutsLongText(t *testing.T) {
	if got := driver.Bound("short"); got != "short" {
		t.Errorf("Bound changed a short text to %q, want no change", got)
	}
	long := driver.Bound(strings.Repeat("ä", driver.MaxMetadata) + "z")
	if len(long) > driver.MaxMetadata || !utf8.ValidString(long) || !strings.HasSuffix(long, "äz") {
		t.Errorf("Bound shortened a long text to %d bytes (valid UTF-8: %t); want at most MaxMetadata bytes, valid UTF-8 and the end of the text", len(long), utf8.ValidString(long))
	}
}

func TestAnExitCountsAccordingToTheDesiredState(t *testing.T) {
	failed := driver.Observed{State: driver.Failed, Class: driver.RuntimeError, Message: "exited with code 137"}
	if got := failed.Under(false); got.State != driver.Stopped || got.Class != "" || got.Message != failed.Message {
		t.Errorf("an instance that failed while its desired state is stopped is reported as %+v, want Stopped", got)
	}
	partly := failed
	partly.PartlyRunning = true
	if got := partly.Under(false); got.State != driver.Running || got.Class != "" {
		t.Errorf("a failed stack that should be stopped, and of which a service runs, is reported as %+v, want Running", got)
	}
	if got := failed.Under(true); got.State != driver.Failed {
		t.Errorf("an instance that failed while its desired state is running is reported as %+v, want Failed", got)
	}
}

func TestHintsNeverBlock(t *testing.T) {
	h := driver.NewHints()
	for range 1000 { // no reader takes the hints here, and Add must not block
		h.Add("a")
		h.Add("b")
	}
	ctx, cancel := context.WithCancel(context.Background())
	out := make(chan driver.ID)
	go h.Send(ctx, out)
	for _, want := range []driver.ID{"a", "b"} {
		if got := <-out; got != want {
			t.Errorf("the reader of the queue got the workload id %q, want %q", got, want)
		}
	}
	select {
	case got := <-out:
		t.Errorf("the reader got workload id %q again, but an id must be in the queue at most once", got)
	case <-time.After(20 * time.Millisecond):
	}
	h.Add("c")
	if got := <-out; got != "c" {
		t.Errorf("the reader of the queue got the workload id %q, want \"c\"", got)
	}
	cancel()
	if _, open := <-out; open {
		t.Error("not closed")
	}
}
