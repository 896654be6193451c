// Command node holds the programs of a cluster of one node in one binary, so that what they share is
// compiled and linked once. The name that it is started by says which one it is:
//
//	ln -s node kubelet && ./kubelet --version
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	// Certificates and schedules name time zones; an image or a node may have none installed.
	_ "time/tzdata"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	status := 0
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		status = cli.Run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		status = cli.Run(controllers.NewControllerManagerCommand())
	case "kube-scheduler":
		status = cli.Run(scheduler.NewSchedulerCommand())
	case "kubelet":
		status = cli.Run(kubelet.NewKubeletCommand(context.Background()))
	case "kube-proxy":
		status = cli.Run(proxy.NewProxyCommand())
	case "kubectl":
		// Its errors have texts of their own; this prints them and ends the program.
		util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	default:
		fmt.Fprintf(os.Stderr, "%s is none of the programs of a node: see main.go\n", name)
		status = 2
	}
	os.Exit(status)
}
