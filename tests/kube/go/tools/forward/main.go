// Serves the API server, which listens on loopback alone, at the addresses pods know: the ClusterIP of the Service
// `kubernetes` and its endpoint. It stands in for kube-proxy, whose rules in the machine's packet filter would have to
// be told from those of others when the testbed is taken down.
//
//	forward TARGET ADDRESS...
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: forward TARGET ADDRESS...")
	}
	target := os.Args[1]
	ended := make(chan error)
	for _, address := range os.Args[2:] {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			log.Fatal(err)
		}
		log.Printf("%s -> %s", address, target)
		go func() { ended <- serve(listener, target) }()
	}
	log.Fatal(<-ended)
}

func serve(listener net.Listener, target string) error {
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go relay(client, target)
	}
}

// Relays both ways; each direction ends on its own, as a half-closed connection does.
func relay(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		log.Printf("from %s: %v", client.RemoteAddr(), err)
		return
	}
	defer server.Close()
	answered := make(chan struct{})
	go func() {
		copyHalf(server, client)
		close(answered)
	}()
	copyHalf(client, server)
	<-answered
}

func copyHalf(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}
