// Package console is the web console: pages that the gateway serves from memory.
//
// The pages are JavaScript modules without a build step, and load nothing from
// other hosts. Their data comes from /v1 of the gateway that served them, with the
// caller's own certificate, session or token. So the console can do nothing that the caller
// cannot do with persysctl.
//
//	app.js        the frame around pages: routing, banner, sign-in, token dialog, keyboard shortcuts, selected cluster
//	live.js       events for every page; reading a page again after an event
//	api.js        requests, streams, and the age of the data on the page
//	dom.js        elements that every page is built from
//	chart.js      capacity, reserved and used amounts of one resource
//	placement.js  the planner's verdict on each node
//	overview.js   health, troubles, capacity
//	nodes.js      map, list, one node, cordon and drain with a preview
//	workloads.js  a list of any length; only rows in sight are elements
//	job.js        the result of a job, and the runs of its group
//	template.js   crons, parameterized jobs and system workloads, with their runs or members
//	group.js      members of a group, scaling, rolling update
//	workload.js   state, timeline, placement, logs, specification
//	exec.js       a session in a workload; loaded when its tab is opened
//	term.js       the terminal of a session
//	history.js    revisions, their differences, rolling back; loaded when its tab is opened
//	deploy.js     a specification, its plan, its progress
//	drifts.js     differences between the schedulers' state and the nodes
//	events.js     events, and the audit
//
// Tests check that the imports form no circle, that the modules pass the type checks of tsc (tsconfig.json),
// and that they are formatted by format.js.
package console
