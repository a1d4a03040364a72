//go:build parts

// Package parts names the programs of others that this module builds, so that `go mod tidy` keeps what they need in go.sum.
package parts

import _ "sigs.k8s.io/kwok/cmd/kwok"
