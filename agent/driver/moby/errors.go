package moby

import (
	"context"
	"errors"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
)

// Docker's Go client turns the HTTP status of an engine's answer into errdefs types. Several causes share
// status 500, above all errors that the registry or the kernel reported to the engine. Only errors with
// status 500 are classified by their text, and only by fixed phrases of the engine, the registry protocol or
// the C library. An error without a known phrase is treated as temporary.

// phrase maps a fixed text to its class.
type phrase struct {
	text  string
	class driver.Class
}

func match(err error, table []phrase) driver.Class {
	text := strings.ToLower(err.Error())
	for _, p := range table {
		if strings.Contains(text, p.text) {
			return p.class
		}
	}
	return ""
}

// enginePhrases returns the phrases in errors of create, start, stop and remove calls.
func enginePhrases() []phrase {
	return []phrase{
		{"no space left on device", driver.StorageFull},
		{"disk quota exceeded", driver.StorageFull},
		{"port is already allocated", driver.PortBindConflict},
		{"address already in use", driver.PortBindConflict},
		{"ports are not available", driver.PortBindConflict},
		{"range of cpus is from", driver.InsufficientResources}, // the specification asks for more CPUs than the machine has
		{"cannot allocate memory", driver.InsufficientResources},
		{"minimum memory limit allowed", driver.InvalidSpecification},
		// Devices that this machine lacks.
		{"error gathering device information", driver.RuntimeResourceMissing},
		{"unresolvable cdi devices", driver.RuntimeResourceMissing},
		{"could not select device driver", driver.RuntimeResourceMissing}, // the engine has no driver for the requested GPUs
		// Errors about options that this engine or kernel lacks. A retry cannot succeed until the
		// specification or the machine changes.
		{"does not match the specified platform", driver.InvalidConfiguration},
		{"unknown runtime specified", driver.InvalidConfiguration},
		{"unknown or invalid runtime name", driver.InvalidConfiguration},
		{"require docker engine", driver.InvalidConfiguration}, // Compose writes this about options that need a newer engine
		{"requires docker engine", driver.InvalidConfiguration},
		{"your kernel does not support", driver.InvalidConfiguration},
		{"is not enabled in your kernel", driver.InvalidConfiguration},
		{"is not enabled on the system", driver.InvalidConfiguration}, // the machine does not use AppArmor
		{"invalid mount config", driver.StorageAttachFailed},
		{"error while creating mount source path", driver.StorageAttachFailed},
		{"error mounting", driver.StorageAttachFailed},
	}
}

// execPhrases returns the phrases in errors about a command that cannot be executed. They occur in errors of
// start calls and in the error field of a container.
func execPhrases() []phrase {
	return []phrase{
		{"executable file not found", driver.InvalidConfiguration},
		{"exec format error", driver.InvalidConfiguration},
		{"exec: \"", driver.InvalidConfiguration},
	}
}

// pullPhrases returns the phrases in errors of image pulls. The order matters: phrases of the registry's
// answer come before those of connection errors.
func pullPhrases() []phrase {
	return []phrase{
		{"no space left on device", driver.StorageFull},
		{"no basic auth credentials", driver.ImagePullAuthFailed},
		{"pull access denied", driver.ImagePullAuthFailed},
		{"unauthorized:", driver.ImagePullAuthFailed},
		{": unauthorized", driver.ImagePullAuthFailed}, // the registry refused the credentials
		{"authentication required", driver.ImagePullAuthFailed},
		{"401 unauthorized", driver.ImagePullAuthFailed},
		{"403 forbidden", driver.ImagePullAuthFailed},
		{"parsing http 401 response", driver.ImagePullAuthFailed}, // the registry answered 401 without the JSON body of the registry protocol
		{"parsing http 403 response", driver.ImagePullAuthFailed},
		{"denied:", driver.ImagePullAuthFailed},
		{"manifest unknown", driver.InvalidImage},
		{"name unknown", driver.InvalidImage},
		{"no matching manifest for", driver.InvalidImage},
		{"no such host", driver.DNSResolutionFailed},
		{"server misbehaving", driver.DNSResolutionFailed},
		{"temporary failure in name resolution", driver.DNSResolutionFailed},
		{"connection refused", driver.NetworkUnreachable},
		{"connection reset by peer", driver.NetworkUnreachable},
		{"no route to host", driver.NetworkUnreachable},
		{"network is unreachable", driver.NetworkUnreachable},
	}
}

// Classify turns the error of an engine call into a driver.Error; nil stays nil.
func Classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var typed *driver.Error
	if errors.As(err, &typed) {
		return err
	}
	return &driver.Error{Class: engineClass(op, err), Op: op, Err: err}
}

func engineClass(op string, err error) driver.Class {
	switch {
	case errors.Is(err, context.Canceled):
		return driver.UnknownError
	case unreachable(err):
		return driver.RuntimeUnhealthy
	}
	if class := match(err, enginePhrases()); class != "" {
		return class
	}
	if op == "start" {
		if class := match(err, execPhrases()); class != "" {
			return class
		}
	}
	switch {
	case cerrdefs.IsNotFound(err):
		return driver.RuntimeResourceMissing
	case cerrdefs.IsInvalidArgument(err) && op == "start":
		return driver.InvalidConfiguration
	case cerrdefs.IsInvalidArgument(err) && op == "create":
		return driver.InvalidSpecification
	}
	return driver.RuntimeError
}

// unreachable reports whether err means that the engine itself did not answer.
func unreachable(err error) bool {
	return client.IsErrConnectionFailed(err) || cerrdefs.IsUnavailable(err) ||
		errors.Is(err, context.DeadlineExceeded) || driver.Generic(err) != ""
}

// pullClass returns the class of an image pull's error. It is a permanent error only if the registry says that
// the image does not exist or may not be read. Every other failure is treated as temporary, because the agent
// must not stop its retries during an outage.
func pullClass(err error) driver.Class {
	switch {
	case errors.Is(err, context.Canceled):
		return driver.UnknownError
	case errors.Is(err, context.DeadlineExceeded):
		return driver.ImagePullTimeout
	case unreachable(err):
		return driver.RuntimeUnhealthy
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err):
		return driver.ImagePullAuthFailed
	}
	// Engines answer with status 404 if an image is missing, and also if the caller may not read it. Only the
	// text distinguishes the two cases.
	if class := match(err, pullPhrases()); class != "" {
		return class
	}
	if cerrdefs.IsNotFound(err) || cerrdefs.IsInvalidArgument(err) {
		return driver.InvalidImage
	}
	return driver.ImagePullTimeout
}

// ExitClass returns the error class of a container that ended or could not start. note is the error text that
// the engine stored for it.
func ExitClass(note string) driver.Class {
	if note == "" {
		return driver.RuntimeError
	}
	err := errors.New(note)
	if class := match(err, enginePhrases()); class != "" {
		return class
	}
	if class := match(err, execPhrases()); class != "" {
		return class
	}
	return driver.RuntimeError
}
