// Package gateway is the HTTP face of the clusters: the routes that existing
// CLIs call (contract/gateway-rest.md), /v1 with what the gRPC API offers
// (generated from the protos, api/rest), its OpenAPI document, and webhooks. It
// keeps no state of its own: every call is one gRPC call to a replica.
//
// A request passes, in this order: the service header, the limits, who is
// calling (client certificate, bearer token, or the anonymous admin under
// -insecure), which cluster, and then its handler. What the caller may do is
// judged where the gRPC call is made, by one table (access.go), so that no route
// can be forgotten.
package gateway
