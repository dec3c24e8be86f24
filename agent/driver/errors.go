package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Error is what a driver returns: which operation failed, how to treat it, and the cause.
type Error struct {
	Class Class
	Op    string
	Err   error
}

// Error is "<op>: <cause> (<class>)".
func (e *Error) Error() string {
	return e.Op + ": " + e.Err.Error() + " (" + string(e.Class) + ")"
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Transient is that of the class.
func (e *Error) Transient() bool { return e.Class.Transient() }

// Errorf makes an Error from a format.
func Errorf(class Class, op, format string, args ...any) *Error {
	return &Error{Class: class, Op: op, Err: fmt.Errorf(format, args...)}
}

// ClassOf is the class of err: that of the Error inside it, else what Generic sees, else
// UnknownError. Nil has no class.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	var typed *Error
	if errors.As(err, &typed) {
		return typed.Class
	}
	if class := Generic(err); class != "" {
		return class
	}
	return UnknownError
}

// Generic classifies by the types that the standard library and the kernel give, which hold for
// every driver; "" if none fits. Driver packages look at their client's own types first.
func Generic(err error) Class {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return StorageFull
	case errors.Is(err, syscall.EADDRINUSE):
		return PortBindConflict
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return InsufficientResources
	case errors.As(err, &dns):
		return DNSResolutionFailed
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return NetworkUnreachable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return NetworkTimeout
	case errors.As(err, &op) && op.Timeout():
		return NetworkTimeout
	case errors.As(err, &op), errors.Is(err, io.ErrUnexpectedEOF):
		return NetworkUnreachable
	}
	return ""
}
