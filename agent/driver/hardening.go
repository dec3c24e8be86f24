package driver

import "strings"

// DefaultPids is the process limit of a container whose spec has none: twice Podman's default. Ordinary
// programs need far fewer processes, and the limit keeps a fork bomb from filling the process table of the
// node.
const DefaultPids = 4096

// noNewPrivileges keeps set-user-ID programs from giving a process more rights than it was started with.
const noNewPrivileges = "no-new-privileges"

// HardenedOptions returns the security options of a container: those in options, and no-new-privileges in
// addition. It is not added if options already name it (no-new-privileges=false turns it off) or if the
// container is privileged.
func HardenedOptions(options []string, privileged bool) []string {
	if privileged {
		return options
	}
	for _, o := range options {
		if strings.HasPrefix(o, noNewPrivileges) {
			return options
		}
	}
	return append(options[:len(options):len(options)], noNewPrivileges+":true")
}
