package main

import (
	"context"
	"sync/atomic"

	"github.com/apache/yunikorn-k8shim/pkg/client"
	"github.com/apache/yunikorn-k8shim/pkg/common/utils"
	"github.com/apache/yunikorn-k8shim/pkg/conf"
	"github.com/apache/yunikorn-k8shim/pkg/shim"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/api"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"muster/kubernetes/shim/internal/gateway"
)

// cluster is gateway.Cluster: the apiserver, and YuniKorn's shim once it has begun.
type cluster struct {
	kube  kubernetes.Interface
	begun atomic.Pointer[shim.KubernetesShim]
}

var _ gateway.Cluster = &cluster{}

func newCluster() (*cluster, error) {
	kube, err := newClient()
	return &cluster{kube: kube}, err
}

// newClient reaches the apiserver with YuniKorn's settings. It speaks protobuf: YuniKorn's own clients speak JSON, which
// costs the apiserver and this process several times as much for each change of a pod.
func newClient() (kubernetes.Interface, error) {
	settings := conf.GetSchedulerConf()
	config, err := client.CreateRestConfig(settings.GetKubeConfigPath())
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = float32(settings.KubeQPS), settings.KubeBurst
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(config)
}

// newShim makes YuniKorn's shim, which calls the scheduler, not started. It differs from NewShimScheduler in its informers'
// client, and in the recorder of its events, which the caller sets.
//
// (NewShimSchedulerForPlugin is the entry point that takes informers. Nothing else of the plugin mode is used.)
func newShim(scheduler api.SchedulerAPI, kube kubernetes.Interface, configMaps []*v1.ConfigMap) *shim.KubernetesShim {
	informers := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(withoutManagedFields))
	made := shim.NewShimSchedulerForPlugin(scheduler, informers, conf.GetSchedulerConf(), configMaps)
	utils.SetPluginMode(false)
	return made
}

// withoutManagedFields drops what only the apiserver needs, and what is a large part of each pod.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

func (c *cluster) Cached(uid string) *v1.Pod {
	if begun := c.begun.Load(); begun != nil {
		return begun.GetContext().GetSchedulerCache().GetPod(uid)
	}
	return nil
}

func (c *cluster) Get(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	return c.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (c *cluster) Bind(ctx context.Context, pod *v1.Pod, node string) error {
	return c.kube.CoreV1().Pods(pod.Namespace).Bind(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

func (c *cluster) Task(application, uid string) gateway.Task {
	if app := c.begun.Load().GetContext().GetApplication(application); app != nil {
		if task := app.GetTask(uid); task != nil {
			return task
		}
	}
	return nil
}

func (c *cluster) Forget(application string, pod *v1.Pod) {
	context := c.begun.Load().GetContext()
	context.RemoveTask(application, string(pod.UID))
	context.GetSchedulerCache().RemovePod(pod)
}

func (c *cluster) Add(application string, pod *v1.Pod) {
	if c.Task(application, string(pod.UID)) == nil {
		c.begun.Load().GetContext().AddPod(pod.DeepCopy())
	}
}
