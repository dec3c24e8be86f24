// Package names answers the DNS queries of containers on networks between nodes.
//
//   - The names of the members come from the schedulers (WatchNetworkNames) and are on disk before they are used. So
//     they are answered while no scheduler answers, and after a restart of the agent.
//   - A container is answered only with members of the networks that it is on itself.
//   - Queries for other names go to the resolvers of the machine.
//
// The zone is small and differs from container to container, so answers are made when they are asked for. The
// schedulers' DNS server (package dnsserver) prepares the answers of one large zone instead.
package names
