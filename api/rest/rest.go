// Package rest holds the HTTP side of the API, generated from the protos: the OpenAPI documents and, in its
// subpackages, the handlers of /v1. rest.yaml maps each HTTP request to a gRPC call.
package rest

import _ "embed"

// OpenAPI is the document (OpenAPI 2.0, JSON) of all of /v1.
//
//go:embed openapi.json
var OpenAPI []byte

// OpenAPI3 describes the same API as OpenAPI, as an OpenAPI 3.0 document (JSON). tools/openapi3 converts it.
//
//go:embed openapi3.json
var OpenAPI3 []byte

// Rules is rest.yaml, which maps each HTTP request to a gRPC call.
//
//go:embed rest.yaml
var Rules []byte
