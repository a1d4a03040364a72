//go:build parts

// Package parts names the S3 server that tests talk to, so that go.mod and go.sum say which one it is.
package parts

import (
	_ "github.com/versity/versitygw/cmd/versitygw"
)
