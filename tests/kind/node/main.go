// Command node contains the programs of a cluster with one node in one binary, so that shared packages are
// compiled and linked once. The name of the binary selects the program:
//
//	ln -s node kubelet && ./kubelet --version
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	// Certificates and schedules use time zones, which may not be installed.
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
		// Its errors are printed with their own texts; this also exits the program.
		util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	default:
		fmt.Fprintf(os.Stderr, "%s is none of the programs of a node: see main.go\n", name)
		status = 2
	}
	os.Exit(status)
}
