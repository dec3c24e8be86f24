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
		t.Errorf("the generations are not in ascending order: %v", order)
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
		{name: "another node of the cluster", workload: "w", cluster: "c1", node: "n2", want: driver.Sibling},
		{name: "another cluster, the same node name", workload: "w", cluster: "c2", node: "n1", want: driver.Foreign},
		{name: "no node, claimed by the store", workload: "mine", want: driver.Claimed},
		{name: "no node, claimed, our cluster", workload: "mine", cluster: "c1", want: driver.Claimed},
		{name: "no node, claimed, another cluster", workload: "mine", cluster: "c2", want: driver.Foreign},
		{name: "no node, unclaimed", workload: "w", want: driver.Foreign},
		{name: "a node without cluster", workload: "mine", node: "n1", want: driver.Foreign},
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
			t.Errorf("%s: the owner is %d, want %d", c.name, got, c.want)
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
		t.Errorf("there are %d error classes, the contract has %d", len(driver.Classes()), len(want))
	}
	for _, c := range driver.Classes() {
		if got := (row{c.Cause(), c.FailureReason(driver.Container)}); got != want[c] {
			t.Errorf("class %s has cause and reason %+v, want %+v", c, got, want[c])
		}
	}
	if got := driver.RuntimeError.FailureReason(driver.VM); got != "VM_BOOT_FAILED" {
		t.Errorf("the reason of a VM's runtime error is %s, want VM_BOOT_FAILED", got)
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
		t.Errorf("the shortened text has %d bytes and is valid UTF-8: %t; want at most MaxMetadata bytes, valid, with the end of the text", len(long), utf8.ValidString(long))
	}
}

func TestAnExitCountsAccordingToTheDesiredState(t *testing.T) {
	failed := driver.Observed{State: driver.Failed, Class: driver.RuntimeError, Message: "exited with code 137"}
	if got := failed.Under(false); got.State != driver.Stopped || got.Class != "" || got.Message != failed.Message {
		t.Errorf("a failed instance that should be stopped is reported as %+v, want Stopped", got)
	}
	partly := failed
	partly.PartlyRunning = true
	if got := partly.Under(false); got.State != driver.Running || got.Class != "" {
		t.Errorf("a failed stack that should be stopped, and of which a service runs, is reported as %+v, want Running", got)
	}
	if got := failed.Under(true); got.State != driver.Failed {
		t.Errorf("a failed instance that should run is reported as %+v, want Failed", got)
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
			t.Errorf("the reader got the hint %q, want %q", got, want)
		}
	}
	select {
	case got := <-out:
		t.Errorf("hint %q was not coalesced", got)
	case <-time.After(20 * time.Millisecond):
	}
	h.Add("c")
	if got := <-out; got != "c" {
		t.Errorf("the reader got the hint %q, want c", got)
	}
	cancel()
	if _, open := <-out; open {
		t.Error("not closed")
	}
}
