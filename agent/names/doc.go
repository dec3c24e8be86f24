// Package names answers the DNS queries of containers on networks between nodes.
//
//   - The names of the members come from the schedulers (WatchNetworkNames) and are on disk before they are used.
//     So queries for them are answered while no scheduler answers, and after a restart of the agent.
//   - A container gets only the names of members of its own networks.
//   - Queries for other names go to the resolvers of the machine.
//
// The zone is small and differs from container to container, so this package computes each answer when the query
// arrives. The schedulers' DNS server (package dnsserver) prepares the answers of one large zone instead.
package names
