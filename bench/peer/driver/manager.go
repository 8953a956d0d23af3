package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"google.golang.org/grpc"
)

// Before the measured asks, so many seconds of asks at the same pace.
const warmSeconds = 1.0

// manager is the resource manager of one run.
type manager struct {
	ctx    context.Context
	client si.SchedulerClient
	load   workload

	allocations  grpc.BidiStreamingClient[si.AllocationRequest, si.AllocationResponse]
	applications grpc.BidiStreamingClient[si.ApplicationRequest, si.ApplicationResponse]
	nodes        grpc.BidiStreamingClient[si.NodeRequest, si.NodeResponse]
	failed       chan error

	mutex     sync.Mutex
	due       map[string][]time.Time // by prefix, then number
	latencies []time.Duration
	allocated count
	released  count
	accepted  count // applications
	known     count // nodes
}

// count of what has happened, and of what is waited for.
type count struct {
	now, wanted int
	last        time.Time
	reached     chan struct{}
}

// until begins to wait for more of it. (The mutex is held.)
func (c *count) until(more int) <-chan struct{} {
	c.wanted, c.reached = c.now+more, make(chan struct{})
	return c.reached
}

// add has happened. (The mutex is held.)
func (c *count) add(more int) {
	c.now += more
	c.last = time.Now()
	if c.reached != nil && c.now >= c.wanted {
		close(c.reached)
		c.reached = nil
	}
}

func newManager(ctx context.Context, connection *grpc.ClientConn, load workload) *manager {
	return &manager{
		ctx:    ctx,
		client: si.NewSchedulerClient(connection),
		load:   load,
		failed: make(chan error, 3),
		due:    map[string][]time.Time{},
	}
}

func (m *manager) wait(what string, reached <-chan struct{}) error {
	select {
	case <-reached:
		return nil
	case err := <-m.failed:
		return fmt.Errorf("%s: %w", what, err)
	case <-m.ctx.Done():
		m.mutex.Lock()
		defer m.mutex.Unlock()
		return fmt.Errorf("%s: %w: %d allocated, %d released", what, m.ctx.Err(), m.allocated.now, m.released.now)
	}
}

// register registers, opens the streams, and adds nodes and applications. It returns how long the nodes took.
func (m *manager) register() (time.Duration, error) {
	_, err := m.client.RegisterResourceManager(m.ctx, &si.RegisterResourceManagerRequest{
		RmID: rmID, PolicyGroup: "queues", Version: "1", Config: m.load.config(),
	})
	if err != nil {
		return 0, err
	}
	if m.allocations, err = m.client.UpdateAllocation(m.ctx); err != nil {
		return 0, err
	}
	if m.applications, err = m.client.UpdateApplication(m.ctx); err != nil {
		return 0, err
	}
	if m.nodes, err = m.client.UpdateNode(m.ctx); err != nil {
		return 0, err
	}
	go receive(m, m.allocations, m.onAllocations)
	go receive(m, m.applications, m.onApplications)
	go receive(m, m.nodes, m.onNodes)

	infos := m.load.nodeInfos()
	m.mutex.Lock()
	reached := m.known.until(len(infos))
	m.mutex.Unlock()
	began := time.Now()
	for part := range chunks(infos, m.load.perMessage) {
		if err := m.nodes.Send(&si.NodeRequest{RmID: rmID, Nodes: part}); err != nil {
			return 0, err
		}
	}
	if err := m.wait("nodes", reached); err != nil {
		return 0, err
	}
	took := time.Since(began)

	requests := m.load.applicationRequests()
	m.mutex.Lock()
	reached = m.accepted.until(len(requests))
	m.mutex.Unlock()
	if err := m.applications.Send(&si.ApplicationRequest{RmID: rmID, New: requests}); err != nil {
		return 0, err
	}
	return took, m.wait("applications", reached)
}

// send asks for the numbers from first on, at once or, with a pace, one by one at their times.
func (m *manager) send(prefix string, first, many int, pace time.Duration) error {
	if pace == 0 {
		for from := first; from < first+many; from += m.load.perMessage {
			asks := make([]*si.Allocation, 0, m.load.perMessage)
			for number := from; number < min(from+m.load.perMessage, first+many); number++ {
				asks = append(asks, m.load.ask(prefix, number))
			}
			m.note(prefix, from, len(asks), time.Now())
			if err := m.allocations.Send(&si.AllocationRequest{RmID: rmID, Allocations: asks}); err != nil {
				return err
			}
		}
		return nil
	}
	began := time.Now().Add(50 * time.Millisecond)
	for number := range many {
		at := began.Add(time.Duration(number) * pace)
		time.Sleep(time.Until(at))
		asks := []*si.Allocation{m.load.ask(prefix, first+number)}
		m.note(prefix, first+number, 1, at)
		if err := m.allocations.Send(&si.AllocationRequest{RmID: rmID, Allocations: asks}); err != nil {
			return err
		}
	}
	return nil
}

// note keeps when asks were due.
func (m *manager) note(prefix string, first, many int, at time.Time) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.due[prefix] == nil {
		m.due[prefix] = make([]time.Time, m.load.asks)
	}
	for number := first; number < first+many; number++ {
		m.due[prefix][number] = at
	}
}

func (m *manager) onAllocations(response *si.AllocationResponse) error {
	now := time.Now()
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, rejected := range response.GetRejectedAllocations() {
		return fmt.Errorf("%s was rejected: %s", rejected.GetAllocationKey(), rejected.GetReason())
	}
	for _, allocation := range response.GetNew() {
		prefix, number, err := numberOf(allocation.GetAllocationKey())
		if err != nil {
			return err
		}
		m.latencies = append(m.latencies, now.Sub(m.due[prefix][number]))
	}
	if many := len(response.GetNew()); many > 0 {
		m.allocated.add(many)
	}
	if many := len(response.GetReleased()); many > 0 {
		m.released.add(many)
	}
	return nil
}

func (m *manager) onApplications(response *si.ApplicationResponse) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, rejected := range response.GetRejected() {
		return fmt.Errorf("%s was rejected: %s", rejected.GetApplicationID(), rejected.GetReason())
	}
	m.accepted.add(len(response.GetAccepted()))
	return nil
}

func (m *manager) onNodes(response *si.NodeResponse) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, rejected := range response.GetRejected() {
		return fmt.Errorf("%s was rejected: %s", rejected.GetNodeID(), rejected.GetReason())
	}
	m.known.add(len(response.GetAccepted()))
	return nil
}

// receive hands over what a stream brings, until it or the run ends.
func receive[Request, Response any](
	m *manager, stream grpc.BidiStreamingClient[Request, Response], take func(*Response) error,
) {
	for {
		response, err := stream.Recv()
		if err == nil {
			err = take(response)
		}
		if err != nil {
			select {
			case m.failed <- errors.Join(err, m.ctx.Err()):
			default:
			}
			return
		}
	}
}
