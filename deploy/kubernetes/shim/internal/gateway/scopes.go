package gateway

import (
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	v1 "k8s.io/api/core/v1"
)

// The tag of an ask that says beside which other proposals it may be open (docs/callbacks.md, What is open at once).
const scopeTag = "muster.callbacks.open"

// scopeOf says for which pods Muster may ask about one proposal at a time only, because the answer depends on where other
// pods are placed: on the node alone (host ports), or anywhere. "": all proposals may be open at once.
//
// One of the two pods has the rule, and its proposals are alone. So the other one needs no tag.
func scopeOf(pod *v1.Pod) string {
	spec := &pod.Spec
	if affinity := spec.Affinity; affinity != nil {
		if affinity.PodAffinity != nil && len(affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "one"
		}
		if affinity.PodAntiAffinity != nil && len(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "one"
		}
	}
	for i := range spec.TopologySpreadConstraints {
		if spec.TopologySpreadConstraints[i].WhenUnsatisfiable == v1.DoNotSchedule {
			return "one"
		}
	}
	for i := range spec.Volumes {
		// Volumes are chosen and bound for a node; limits and access modes count those of other pods.
		if spec.Volumes[i].PersistentVolumeClaim != nil || spec.Volumes[i].Ephemeral != nil {
			return "one"
		}
	}
	if hasHostPort(spec.Containers) || hasHostPort(spec.InitContainers) {
		return "node"
	}
	return ""
}

func hasHostPort(containers []v1.Container) bool {
	for i := range containers {
		for _, port := range containers[i].Ports {
			if port.HostPort > 0 {
				return true
			}
		}
	}
	return false
}

// tagAsks gives the asks of a request their scopes. What the pod's own labels say comes first.
func tagAsks(request *si.AllocationRequest, pod func(uid string) *v1.Pod) {
	for _, ask := range request.GetAllocations() {
		if ask.NodeID != "" || ask.AllocationTags[scopeTag] != "" {
			continue
		}
		found := pod(ask.AllocationKey)
		if found == nil {
			continue
		}
		if scope := scopeOf(found); scope != "" {
			if ask.AllocationTags == nil {
				ask.AllocationTags = map[string]string{}
			}
			ask.AllocationTags[scopeTag] = scope
		}
	}
}
