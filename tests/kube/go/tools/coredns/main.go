// The cluster's DNS: CoreDNS with the few plugins that the testbed's Corefile names. The whole of CoreDNS links the
// clients of several clouds, which take minutes to compile and are not needed here.
package main

import (
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/coremain"
)

func main() {
	coremain.Run()
}
