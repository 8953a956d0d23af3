package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
)

const (
	rmID      = "bench"
	partition = "default"
	gib       = 1 << 30
	// The nodes together hold so much of the whole demand: room is never what an ask waits for.
	room = 1.25
)

// workload is the size of a scenario.
type workload struct {
	nodes, asks, queues, applications, shapes, priorities, perMessage int
}

// config has flat queues without quotas, and fair nodes.
func (w workload) config() string {
	var leaves strings.Builder
	for number := range w.queues {
		fmt.Fprintf(&leaves, "          - name: q%d\n", number)
	}
	return "partitions:\n  - name: default\n    nodesortpolicy:\n      type: fair\n    queues:\n" +
		"      - name: root\n        submitacl: '*'\n        queues:\n" + leaves.String()
}

func quantities(milliCores, bytes int64) *si.Resource {
	return &si.Resource{Resources: map[string]*si.Quantity{
		"vcore": {Value: milliCores}, "memory": {Value: bytes},
	}}
}

// shape is the size of an ask: 1 core and 4 GiB, or one of several around that.
func (w workload) shape(number int) (milliCores, bytes int64) {
	if w.shapes == 1 {
		return 1000, 4 * gib
	}
	kind := number % w.shapes
	return int64(100 * (1 + kind%10)), int64(1+kind/10) * gib
}

func (w workload) nodeInfos() []*si.NodeInfo {
	milliCores, bytes := int64(0), int64(0)
	for number := range max(w.shapes, 1) {
		cores, size := w.shape(number)
		milliCores, bytes = max(milliCores, cores), max(bytes, size)
	}
	share := int64(float64(w.asks)*room)/int64(w.nodes) + 1
	infos := make([]*si.NodeInfo, w.nodes)
	for number := range infos {
		infos[number] = &si.NodeInfo{
			NodeID:              "node-" + strconv.Itoa(number),
			Action:              si.NodeInfo_CREATE,
			Attributes:          map[string]string{"si/node-partition": partition},
			SchedulableResource: quantities(share*milliCores, share*bytes),
		}
	}
	return infos
}

func (w workload) applicationRequests() []*si.AddApplicationRequest {
	requests := make([]*si.AddApplicationRequest, w.applications)
	for number := range requests {
		requests[number] = &si.AddApplicationRequest{
			ApplicationID: applicationID(number),
			QueueName:     fmt.Sprintf("root.q%d", number%w.queues),
			PartitionName: partition,
			Ugi:           &si.UserGroupInformation{User: "bench", Groups: []string{"bench"}},
		}
	}
	return requests
}

func applicationID(number int) string { return "app-" + strconv.Itoa(number) }

// ask of a number. The key ends with the number, see numberOf.
func (w workload) ask(prefix string, number int) *si.Allocation {
	milliCores, bytes := w.shape(number)
	return &si.Allocation{
		AllocationKey:    prefix + "-" + strconv.Itoa(number),
		ApplicationID:    applicationID(number % w.applications),
		PartitionName:    partition,
		ResourcePerAlloc: quantities(milliCores, bytes),
		Priority:         int32(number % w.priorities),
		AllocationTags:   map[string]string{"creationTime": "1"},
	}
}

func (w workload) release(prefix string, number int) *si.AllocationRelease {
	return &si.AllocationRelease{
		PartitionName:   partition,
		ApplicationID:   applicationID(number % w.applications),
		AllocationKey:   prefix + "-" + strconv.Itoa(number),
		TerminationType: si.TerminationType_STOPPED_BY_RM,
	}
}

// numberOf reads an allocation key.
func numberOf(key string) (prefix string, number int, err error) {
	prefix, digits, _ := strings.Cut(key, "-")
	number, err = strconv.Atoi(digits)
	return prefix, number, err
}
