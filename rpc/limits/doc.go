// Package limits keeps one caller from taking a server away from all others: bounds
// on connections, in all and from one host; on calls, under way and per second, of
// one peer; and a panic ends the call that it happens in, not the program.
package limits
