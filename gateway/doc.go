// Package gateway is the HTTP server in front of one or more clusters. It serves:
//
//   - the routes that legacy v1 CLIs call (contract/gateway-rest.md)
//   - /v1, generated from the protobuf services (api/rest), and its OpenAPI document
//   - sessions in workloads over a websocket
//   - webhooks of repositories
//   - the web console (package console), and the login of its users at an OIDC issuer
//
// A gateway makes one gRPC call to a scheduler replica for each request. It stores only the hashes of forwarded webhook
// deliveries, so that a repeated delivery is refused also after a restart.
//
// A request is processed in these steps: the service header, the limits, the caller's identity (bearer token,
// session cookie, client certificate, or the anonymous admin under -insecure), the cluster, the handler. The gateway
// checks the caller's role in one table (access.go) when it makes the gRPC call, so no route can skip the check.
package gateway
