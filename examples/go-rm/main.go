// A resource manager in Go: one node, one application, one task.
//
//	muster up --data-dir /tmp/muster
//	go run . -gateway 127.0.0.1:9090
//
// Its stubs (package si) are those of the scheduler interface alone: nothing in them is Muster's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"example/go-rm/si"
)

const queues = `
partitions:
  - name: default
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: batch
`

func main() {
	gateway := flag.String("gateway", "127.0.0.1:9090", "address of a gateway")
	rmID := flag.String("rm", "go-rm", "id of this resource manager")
	timeout := flag.Duration("timeout", 30*time.Second, "for the whole run")
	announce := flag.Bool("announce", true, "say the rmID when a stream is opened, so that answers can come at once")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if *announce {
		ctx = metadata.AppendToOutgoingContext(ctx, "muster-rm-id", *rmID)
	}
	if err := run(ctx, *gateway, *rmID); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, gateway, rmID string) error {
	connection, err := grpc.NewClient(gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	scheduler := si.NewSchedulerClient(connection)

	_, err = scheduler.RegisterResourceManager(ctx, &si.RegisterResourceManagerRequest{
		RmID: rmID, Version: "1", PolicyGroup: "queues", Config: queues,
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	fmt.Println("registered", rmID)

	// Three streams, open at the same time.
	nodes, err := scheduler.UpdateNode(ctx)
	if err != nil {
		return err
	}
	applications, err := scheduler.UpdateApplication(ctx)
	if err != nil {
		return err
	}
	allocations, err := scheduler.UpdateAllocation(ctx)
	if err != nil {
		return err
	}

	if err := addNode(nodes, rmID); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := addApplication(applications, rmID); err != nil {
		return fmt.Errorf("application: %w", err)
	}
	if err := ask(allocations, rmID); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	return errors.Join(nodes.CloseSend(), applications.CloseSend(), allocations.CloseSend())
}

func addNode(stream si.Scheduler_UpdateNodeClient, rmID string) error {
	err := stream.Send(&si.NodeRequest{RmID: rmID, Nodes: []*si.NodeInfo{{
		NodeID:              "node-1",
		Action:              si.NodeInfo_CREATE,
		Attributes:          map[string]string{"si/node-partition": "default", "si/hostname": "node-1"},
		SchedulableResource: resource(map[string]int64{"vcore": 4_000, "memory": 16 << 30}),
	}}})
	if err != nil {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	for _, node := range answer.Rejected {
		return fmt.Errorf("%s was rejected: %s", node.NodeID, node.Reason)
	}
	fmt.Println("node", answer.Accepted[0].NodeID)
	return nil
}

func addApplication(stream si.Scheduler_UpdateApplicationClient, rmID string) error {
	err := stream.Send(&si.ApplicationRequest{RmID: rmID, New: []*si.AddApplicationRequest{{
		ApplicationID: "app-1",
		QueueName:     "root.batch",
		PartitionName: "default",
		Ugi:           &si.UserGroupInformation{User: "me", Groups: []string{"us"}},
	}}})
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, application := range answer.Rejected {
			return fmt.Errorf("%s was rejected: %s", application.ApplicationID, application.Reason)
		}
		for _, application := range answer.Accepted {
			fmt.Println("application", application.ApplicationID)
			return nil
		}
	}
}

func ask(stream si.Scheduler_UpdateAllocationClient, rmID string) error {
	err := stream.Send(&si.AllocationRequest{RmID: rmID, Allocations: []*si.Allocation{{
		AllocationKey:    "task-1",
		ApplicationID:    "app-1",
		PartitionName:    "default",
		ResourcePerAlloc: resource(map[string]int64{"vcore": 1_000, "memory": 1 << 30}),
		AllocationTags:   map[string]string{"kubernetes.io/meta/podName": "task-1"},
	}}})
	if err != nil {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	for _, rejected := range answer.RejectedAllocations {
		return fmt.Errorf("%s was rejected: %s", rejected.AllocationKey, rejected.Reason)
	}
	for _, made := range answer.New {
		fmt.Println("allocation", made.AllocationKey, "on", made.NodeID)
	}
	return nil
}

func resource(quantities map[string]int64) *si.Resource {
	made := &si.Resource{Resources: map[string]*si.Quantity{}}
	for name, value := range quantities {
		made.Resources[name] = &si.Quantity{Value: value}
	}
	return made
}
