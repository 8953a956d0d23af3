package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example/go-rm/si"
)

// resourceManager is what an RM of either generation has, and says in the same words.
type resourceManager struct {
	id           string
	ctx          context.Context // of its streams
	nodes        si.Scheduler_UpdateNodeClient
	applications si.Scheduler_UpdateApplicationClient
	allocations  si.Scheduler_UpdateAllocationClient
	callbacks    chan error // nil: not open; else how that stream ended
	told         *told
}

// addNode creates a node. What runs on it already is given with it in the previous generation only.
func (rm *resourceManager) addNode(nodeID string, existing ...*si.Allocation) error {
	err := rm.nodes.Send(&si.NodeRequest{RmID: rm.id, Nodes: []*si.NodeInfo{{
		NodeID:              nodeID,
		Action:              si.NodeInfo_CREATE,
		Attributes:          map[string]string{"si/node-partition": "default", "si/hostname": nodeID},
		SchedulableResource: resource(map[string]int64{"vcore": 4_000, "memory": 16 << 30}),
		ExistingAllocations: existing,
	}}})
	if err != nil {
		return err
	}
	answer, err := rm.nodes.Recv()
	if err != nil {
		return err
	}
	for _, node := range answer.Rejected {
		return fmt.Errorf("%s was rejected: %s", node.NodeID, node.Reason)
	}
	fmt.Println("node", answer.Accepted[0].NodeID)
	return nil
}

func (rm *resourceManager) addApplication(applicationID string) error {
	err := rm.applications.Send(&si.ApplicationRequest{RmID: rm.id, New: []*si.AddApplicationRequest{{
		ApplicationID: applicationID,
		QueueName:     "root.batch",
		PartitionName: "default",
		Ugi:           &si.UserGroupInformation{User: "me", Groups: []string{"us"}},
	}}})
	if err != nil {
		return err
	}
	for {
		answer, err := rm.applications.Recv()
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

// reaches waits until the application was in all of these states, one after the other.
func (rm *resourceManager) reaches(states ...string) error {
	for len(states) > 0 {
		answer, err := rm.applications.Recv()
		if err != nil {
			return err
		}
		for _, application := range answer.Updated {
			if len(states) == 0 || application.State != states[0] {
				return fmt.Errorf("%s is %s, expected %v", application.ApplicationID, application.State, states)
			}
			fmt.Println("application", application.ApplicationID, "is", application.State)
			states = states[1:]
		}
	}
	return nil
}

// send says something on the allocation stream.
func (rm *resourceManager) send(request *si.AllocationRequest) error {
	request.RmID = rm.id
	return rm.allocations.Send(request)
}

// hear reads the allocation stream until a response has what is looked for. A rejection is an error.
func (rm *resourceManager) hear(done func(*si.AllocationResponse) bool) error {
	for {
		answer, err := rm.allocations.Recv()
		if err != nil {
			return err
		}
		for _, rejected := range answer.RejectedAllocations {
			return fmt.Errorf("%s was rejected: %s", rejected.AllocationKey, rejected.Reason)
		}
		for _, rejected := range answer.Rejected {
			return fmt.Errorf("%s was rejected: %s", rejected.AllocationKey, rejected.Reason)
		}
		enough := done(answer)
		rm.told.take(answer)
		if enough {
			return nil
		}
	}
}

// allocated waits for so many new allocations.
func (rm *resourceManager) allocated(count int) ([]*si.Allocation, error) {
	var made []*si.Allocation
	err := rm.hear(func(answer *si.AllocationResponse) bool {
		for _, allocation := range answer.New {
			fmt.Println("allocation", allocation.AllocationKey, "on", allocation.NodeID)
		}
		made = append(made, answer.New...)
		return len(made) >= count
	})
	return made, err
}

// release ends an allocation, and waits for the answer. In the previous generation its UUID says which of several.
func (rm *resourceManager) release(ended *si.Allocation) error {
	err := rm.send(&si.AllocationRequest{Releases: &si.AllocationReleasesRequest{
		AllocationsToRelease: []*si.AllocationRelease{{
			PartitionName:   ended.PartitionName,
			ApplicationID:   ended.ApplicationID,
			AllocationKey:   ended.AllocationKey,
			UUID:            ended.UUID,
			TerminationType: si.TerminationType_STOPPED_BY_RM,
		}},
	}})
	if err != nil {
		return err
	}
	return rm.hear(func(answer *si.AllocationResponse) bool {
		for _, gone := range answer.Released {
			fmt.Println("released", gone.AllocationKey)
		}
		return len(answer.Released) > 0
	})
}

// over waits until the scheduler has ended every stream, as it does when an RM has left.
func (rm *resourceManager) over() error {
	ends := []func() error{
		func() error { _, err := rm.nodes.Recv(); return err },
		func() error { _, err := rm.applications.Recv(); return err },
		func() error { _, err := rm.allocations.Recv(); return err },
	}
	for _, next := range ends {
		err := next()
		for err == nil { // what was said before
			err = next()
		}
		if !errors.Is(err, io.EOF) {
			return fmt.Errorf("expected the end of a stream: %w", err)
		}
	}
	if rm.callbacks != nil {
		return <-rm.callbacks
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
