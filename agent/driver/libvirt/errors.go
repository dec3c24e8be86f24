package libvirt

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"

	lv "github.com/digitalocean/go-libvirt"
	"github.com/persys/compute/agent/driver"
)

// lost reports whether err means that the connection is lost: the daemon says so, or its answer did not arrive.
func lost(err error) bool {
	var e lv.Error
	if errors.As(err, &e) {
		switch lv.ErrorNumber(e.Code) {
		case lv.ErrNoConnect, lv.ErrInvalidConn, lv.ErrRPC, lv.ErrNoServer:
			return true
		}
		// virtqemud passes calls for networks and storage on to other daemons. If it loses its connection
		// to one of them, it never opens that connection again. libvirt has no error code for this case,
		// and the client library drops the domain of the error, so compare the text of the error.
		return mentions(e.Message, "client socket is closed", "End of file while reading data", "Cannot recv data", "Cannot write data", "Failed to connect socket")
	}
	var socket *net.OpError
	// The client library returns EINVAL for a call on a connection that was lost before.
	return errors.Is(err, lv.ErrInterrupted) || errors.Is(err, syscall.EINVAL) || errors.As(err, &socket)
}

// mentions reports whether text contains one of the phrases.
func mentions(text string, phrases ...string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(text, p) })
}

// classify returns an error of libvirt as a *driver.Error with a class; op is the operation that failed.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var typed *driver.Error
	if errors.As(err, &typed) {
		return err
	}
	var e lv.Error
	switch {
	case errors.As(err, &e):
	case lost(err):
		return driver.Errorf(driver.RuntimeUnhealthy, op, "the connection to libvirt was lost: %w", err)
	default:
		return driver.Errorf(driver.RuntimeError, op, "%w", err)
	}
	text := strings.ToLower(e.Message)
	has := func(phrases ...string) bool { return mentions(text, phrases...) }
	if refusesQuota(text) {
		return driver.Errorf(driver.InvalidConfiguration, op, "%w", &noQuota{e.Message})
	}
	switch lv.ErrorNumber(e.Code) {
	case lv.ErrNoDomain, lv.ErrNoNetwork, lv.ErrNoStoragePool, lv.ErrNoStorageVol:
		return driver.Errorf(driver.RuntimeResourceMissing, op, "%s: %w", e.Message, errAbsent)
	case lv.ErrXMLError, lv.ErrXMLDetail, lv.ErrConfigUnsupported, lv.ErrXMLInvalidSchema, lv.ErrInvalidArg:
		return driver.Errorf(driver.InvalidConfiguration, op, "%w", err)
	case lv.ErrNoMemory:
		return driver.Errorf(driver.InsufficientResources, op, "%w", err)
	}
	class := driver.RuntimeError
	switch {
	case has("state change lock"):
		// Usually another call holds the domain's lock, and releases it before the next attempt. There is
		// one exception: libvirt 9.0 was killed after it recorded the start of a domain and before QEMU's
		// process existed. After its restart it finds the recorded start and holds the lock forever, and
		// does so again after every second restart.
		return driver.Errorf(class, op, "%w; if this error persists, libvirt's daemon was killed during a start: stop it, remove the domain's file from /run/libvirt/qemu, and start it again", err)
	case lost(err):
		class = driver.RuntimeUnhealthy
	case has("cannot allocate memory", "cannot set up guest memory"):
		class = driver.InsufficientResources
	case has("no space left"):
		class = driver.StorageFull
	case has("cannot access storage file", "failed to get \"write\" lock", "failed to get shared", "storage source"):
		class = driver.StorageAttachFailed
	case has("already exists with uuid", "is already active as"):
		return driver.Errorf(driver.NameConflict, op, "%s: %w", e.Message, errTaken)
	}
	return driver.Errorf(class, op, "%w", err)
}
