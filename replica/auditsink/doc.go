// Package auditsink sends the records of the audit logs out of the cluster: to a file, to the local syslog
// daemon or to an HTTPS endpoint.
//
// A scheduler with SCHEDULER_AUDIT_SINK sends each record of all audit logs at least once, in the order of
// its log. A record is one line of JSON in the format of `persysctl audit list -o json`. `persysctl audit
// verify --file` checks such lines. A file stores the position in each log up to which the records were sent,
// so that the export continues after a restart. If the cluster drops a record before it is sent, a number is
// missing in the sent records. The exporter logs and counts dropped records.
package auditsink
