package main

import (
	"context"
	"sync/atomic"

	"github.com/apache/yunikorn-k8shim/pkg/client"
	"github.com/apache/yunikorn-k8shim/pkg/conf"
	"github.com/apache/yunikorn-k8shim/pkg/shim"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	settings := conf.GetSchedulerConf()
	config, err := client.CreateRestConfig(settings.GetKubeConfigPath())
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = float32(settings.KubeQPS), settings.KubeBurst
	kube, err := kubernetes.NewForConfig(config)
	return &cluster{kube: kube}, err
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
