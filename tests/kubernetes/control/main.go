// control-plane is the control plane of a Kubernetes cluster in one program, for tests: `control-plane etcd ...` is etcd,
// `control-plane apiserver ...` the apiserver, `control-plane controllers ...` the controller manager, and
// `control-plane kubectl ...` kubectl, each with its own flags. One program is built and linked once.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics that both programs register at their start
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "expected etcd, apiserver, controllers or kubectl, and its flags")
		os.Exit(2)
	}
	part := os.Args[1]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	switch part {
	case "etcd":
		etcdmain.Main(os.Args)
	case "apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "controllers":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	case "kubectl":
		kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	default:
		fmt.Fprintf(os.Stderr, "unknown part %q: expected etcd, apiserver, controllers or kubectl\n", part)
		os.Exit(2)
	}
}
