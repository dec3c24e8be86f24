// Package gateway serves the clusters over HTTP:
//
//   - the routes that legacy v1 CLIs call (contract/gateway-rest.md)
//   - /v1, generated from the protobuf services (api/rest), and its OpenAPI document
//   - sessions in workloads over a websocket
//   - webhooks of repositories
//   - the web console (package console)
//
// It stores nothing: each request is one gRPC call to a replica.
//
// A request passes these steps: the service header, the limits, the caller's
// identity (client certificate, bearer token, or the anonymous admin under
// -insecure), the cluster, the handler. The caller's role is checked where the
// gRPC call is made, by one table (access.go), so no route can skip the check.
package gateway
