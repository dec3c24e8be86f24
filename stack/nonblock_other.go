//go:build !linux

package stack

const nonblock = 0
