// Package console is the web console: pages that the gateway serves from memory.
//
// They are plain modules, one per page, with no build step and nothing fetched
// from elsewhere. What they show comes from /v1 of the gateway that served them,
// with the caller's own certificate or token, so they can do nothing that the
// caller cannot do with persysctl.
//
//	app.js        the frame: pages by address, the banner, keys, one live stream
//	api.js        calls, streams, and how fresh the answers are
//	dom.js        what pages are made of; text is only ever set as text
//	chart.js      capacity, what is reserved, and use as it went
//	overview.js   is all well, what needs a hand first, how full is it
//	nodes.js      map, list, one node, cordon and drain with a preview
//	workloads.js  a list of any length, of which only what is in sight exists
//	workload.js   state, timeline, placement, logs, specification
//	exec.js       a session in a workload; read when its tab is opened
//	term.js       the terminal that it is shown in
//	history.js    its revisions, the difference between two, and back
//	deploy.js     a file, its plan, and its way to running
//	drifts.js     where machines differ from what was asked for
//	events.js     what happened, and who asked for it from where
package console
