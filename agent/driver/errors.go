package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Error is the error of a driver: the operation that failed, its class, and the cause.
type Error struct {
	Class Class
	Op    string
	Err   error
	// Started: the call has started all parts of the instance as its Spec asks, and then a part failed. So
	// the next start is one by the agent itself, without an order (Spec.Repeats).
	Started bool
}

// Error formats e as "<op>: <cause> (<class>)".
func (e *Error) Error() string {
	return e.Op + ": " + e.Err.Error() + " (" + string(e.Class) + ")"
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf formats an Error.
func Errorf(class Class, op, format string, args ...any) *Error {
	return &Error{Class: class, Op: op, Err: fmt.Errorf(format, args...)}
}

// ClassOf returns the class of the Error that err wraps. If err wraps none, it returns the class from
// Generic, or else UnknownError. A nil error has no class.
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

// StartedOf returns Error.Started of the Error that err wraps; false if err wraps none.
func StartedOf(err error) bool {
	var typed *Error
	return errors.As(err, &typed) && typed.Started
}

// Generic returns the class of an error of the standard library or the kernel, and "" for other errors. A
// driver first checks the error types of its own client library, and then calls Generic.
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
