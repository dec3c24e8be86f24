// Package limits protects a server from single callers. It limits connections: in total, per host, and of
// clients without a certificate. It limits calls of each peer: concurrent calls, and calls per second. It
// also turns a panic in a call into an error of that call.
package limits
