// Package limits protects a server from single callers. It bounds connections, in total and per
// host, and calls, concurrent and per second, of each peer. It also turns a panic in a call into an
// error of that call.
package limits
