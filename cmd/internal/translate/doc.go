// Package translate writes workload files from the services of a Docker Swarm and from the jobs of Nomad.
//
// A translation depends only on its input: it reads no file and calls no engine. Each field of the input is
// translated, or it has no effect on the workload, or a note names it. A field that this package does not
// know is in the notes too, so no setting is lost silently.
package translate
