// muster-kubernetes-shim: YuniKorn's Kubernetes shim with Muster as its scheduler.
//
//	muster-kubernetes-shim [run] -gateway muster:9090    schedules the pods of a cluster
//	muster-kubernetes-shim leave -gateway muster:9090    tells Muster that the cluster is gone for good (uninstall)
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/yunikorn-k8shim/pkg/client"
	"github.com/apache/yunikorn-k8shim/pkg/common/constants"
	"github.com/apache/yunikorn-k8shim/pkg/common/utils"
	"github.com/apache/yunikorn-k8shim/pkg/conf"
	"github.com/apache/yunikorn-k8shim/pkg/log"
	"github.com/apache/yunikorn-k8shim/pkg/plugin/predicates"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"muster/kubernetes/shim/internal/events"
	"muster/kubernetes/shim/internal/gateway"
	"muster/kubernetes/shim/internal/lead"
	"muster/kubernetes/shim/internal/serve"
)

// Exit codes. All but the first two let Kubernetes start the process again, and then it registers again.
const (
	exitUsage      = 2
	exitRefused    = 3 // Muster does not accept this RM or what it sent
	exitRegister   = 4 // Muster does not know the RM any more
	exitSuperseded = 5 // another shim works for this cluster
	exitLease      = 6 // the Lease is lost
)

func main() {
	command, arguments := "run", os.Args[1:]
	if len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-") {
		command, arguments = arguments[0], arguments[1:]
	}
	commands := map[string]func(*settings) int{"run": run, "leave": leave}
	if commands[command] == nil {
		fmt.Fprintf(os.Stderr, "unknown command %q: expected run or leave\n", command)
		os.Exit(exitUsage)
	}
	settings, err := parse(command, arguments)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitUsage)
	}
	os.Exit(commands[command](settings))
}

// run is the life of a shim: it waits for the Lease, registers, reports the cluster, and works until it is told to end.
func run(settings *settings) int {
	logger := log.RootLogger().Named("muster")
	predicates.EnableOptionalKubernetesFeatureGates() // before anything of Kubernetes is used
	configMaps, err := configure()
	if err != nil {
		logger.Error("no configuration", zap.Error(err))
		return 1
	}
	state, registry := &serve.State{}, prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	at, err := serve.Listen(settings.listen, state, registry)
	if err != nil {
		logger.Error("cannot listen", zap.Error(err))
		return exitUsage
	}
	logger.Info("answers /live, /health and /metrics", zap.Stringer("address", at))

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ends := make(chan int, 8)
	worker := &worker{settings: settings, log: logger, configMaps: configMaps, state: state, registry: registry, ends: ends}
	elected := make(chan struct{})
	if settings.elect {
		go func() {
			defer close(elected)
			if err := worker.elect(ctx); err != nil {
				logger.Error("no election", zap.Error(err))
				ends <- 1
			}
		}()
	} else {
		close(elected)
		go worker.begin()
	}
	select {
	case code := <-ends:
		// (At once: whatever this process still does may be against another shim.)
		return code
	case <-ctx.Done():
		logger.Info("ends")
		worker.stop()
		<-elected // the Lease is given back after the last binding
		return 0
	}
}

// configure reads YuniKorn's ConfigMaps.
func configure() ([]*v1.ConfigMap, error) {
	configMaps, err := client.LoadBootstrapConfigMaps()
	if err != nil {
		return nil, err
	}
	return configMaps, conf.UpdateConfigMaps(configMaps, true)
}

// worker is YuniKorn's shim and its connection to Muster, once they have begun.
type worker struct {
	settings   *settings
	log        *zap.Logger
	configMaps []*v1.ConfigMap
	state      *serve.State
	registry   *prometheus.Registry
	ends       chan<- int
	scheduler  atomic.Pointer[gateway.Scheduler]
}

func (w *worker) elect(ctx context.Context) error {
	config, err := client.CreateRestConfig(conf.GetSchedulerConf().GetKubeConfigPath())
	if err != nil {
		return err
	}
	config.Timeout = w.settings.lead.Deadline / 2
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	election := w.settings.lead
	election.Namespace = conf.GetSchedulerNamespace()
	w.log.Info("waits for the lease", zap.String("lease", election.Namespace+"/"+election.Lease), zap.String("identity", election.Identity))
	lost := func() {
		w.log.Error("the lease is lost: ends at once")
		w.end(exitLease)
	}
	// The Lease outlives the work: it is given back only after stop.
	hold, release := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-ctx.Done()
		w.stop()
		release()
	}()
	return lead.Run(hold, kube, election, w.begin, lost, w.state.Led)
}

// begin registers the cluster with Muster and starts YuniKorn's shim. It returns when the shim works.
func (w *worker) begin() {
	w.state.Begin(serve.Starting)
	cluster, err := newCluster()
	if err != nil {
		w.log.Error("cannot reach kubernetes", zap.Error(err))
		w.end(1)
		return
	}
	scheduler, err := gateway.New(gateway.Settings{
		Gateway: w.settings.gateway, Access: w.settings.access, Log: w.log, Registry: w.registry,
		Cluster: cluster,
		Running: func() []string {
			begun := cluster.begun.Load()
			if begun == nil {
				return nil
			}
			pods, err := begun.GetContext().GetSchedulerCache().List(labels.Everything())
			if err != nil {
				w.log.Warn("cannot list the running pods", zap.Error(err))
			}
			var running []string
			for _, pod := range pods {
				if utils.PodAlreadyBound(pod) {
					running = append(running, string(pod.UID))
				}
			}
			return running
		},
		Fail: func(err error) {
			w.log.Error("ends", zap.Error(err))
			w.end(exitCode(err))
		},
	})
	if err != nil {
		w.log.Error("cannot reach muster", zap.Error(err))
		w.end(exitUsage)
		return
	}
	w.scheduler.Store(scheduler)
	w.state.Watch(scheduler.Open)
	// (Events wait for the apiserver in a client of their own, and hold nothing else up.)
	writer, err := newClient()
	if err == nil {
		err = events.Start(context.Background(), writer, constants.SchedulerName, scheduler.Unplaced, w.registry)
	}
	if err != nil {
		w.log.Error("cannot write events", zap.Error(err))
		w.end(1)
		return
	}
	began := newShim(scheduler, cluster.kube, w.configMaps)
	cluster.begun.Store(began)
	if err := began.Run(); err != nil {
		w.log.Error("the shim does not start", zap.Error(err))
		w.end(exitRefused)
		return
	}
	w.state.Begin(serve.Leading)
	w.log.Info("works")
}

func (w *worker) stop() {
	if scheduler := w.scheduler.Load(); scheduler != nil {
		scheduler.Stop()
	}
}

func (w *worker) end(code int) {
	select {
	case w.ends <- code:
	default:
	}
}

func exitCode(err error) int {
	switch {
	case errors.Is(err, gateway.ErrRegisterAgain):
		return exitRegister
	case errors.Is(err, gateway.ErrSuperseded):
		return exitSuperseded
	default:
		return exitRefused
	}
}

// leave ends the RM's life in Muster, as a hook of an uninstallation does.
func leave(settings *settings) int {
	if _, err := configure(); err != nil {
		fmt.Fprintln(os.Stderr, "no configuration:", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rmID := conf.GetSchedulerConf().ClusterID
	if err := gateway.Leave(ctx, settings.gateway, settings.access, rmID); err != nil {
		fmt.Fprintf(os.Stderr, "%s did not leave: %v\n", rmID, err)
		return 1
	}
	fmt.Println(rmID, "left")
	return 0
}
