// Package rest holds what is generated from the protos for HTTP: the OpenAPI
// document and, in its subpackages, the handlers of /v1. rest.yaml says which
// request is which call.
package rest

import _ "embed"

// OpenAPI is the document (OpenAPI 2.0, JSON) of all of /v1.
//
//go:embed openapi.json
var OpenAPI []byte

// Rules is rest.yaml: which request is which call.
//
//go:embed rest.yaml
var Rules []byte
