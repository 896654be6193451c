// Command pause is process 1 of each pod's sandbox: it keeps the namespaces of the pod open until it is
// stopped, and reaps orphans if containers share its process namespace.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, syscall.SIGCHLD)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	for {
		select {
		case <-end:
			return
		case <-orphans:
			for collected := 1; collected > 0; {
				collected, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			}
		}
	}
}
