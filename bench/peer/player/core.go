package main

import (
	"fmt"
	"math"
	"sync"
	"time"
	_ "unsafe" // go:linkname

	"github.com/apache/yunikorn-core/pkg/entrypoint"
	corelog "github.com/apache/yunikorn-core/pkg/log"
	"github.com/apache/yunikorn-core/pkg/rmproxy"
	"github.com/apache/yunikorn-core/pkg/rmproxy/rmevent"
	"github.com/apache/yunikorn-core/pkg/scheduler"
	"github.com/apache/yunikorn-core/pkg/scheduler/objects"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// One cycle of the scheduling loop. The core's own way to call it from outside sleeps for 100 ms after each.
//
//go:linkname schedule github.com/apache/yunikorn-core/pkg/scheduler.(*ClusterContext).schedule
func schedule(*scheduler.ClusterContext) bool

// How long an ask that found no victims is not tried again.
//
//go:linkname preemptAttemptFrequency github.com/apache/yunikorn-core/pkg/scheduler/objects.preemptAttemptFrequency
var preemptAttemptFrequency time.Duration

const (
	// A cycle that reserves counts as idle: an ask of a play may be followed by that many of them.
	idleCycles = 40
	// Longer than any play.
	never = time.Duration(math.MaxInt64)
)

type heard struct {
	method  string
	message proto.Message
}

// core is the core, and what it answered and was not taken yet.
type core struct {
	services *entrypoint.ServiceContext
	proxy    *rmproxy.RMProxy
	rmID     string
	config   string // of the registration
	inForce  string

	mutex   sync.Mutex
	answers []heard
}

func startCore() *core {
	quiet := zap.NewProductionConfig()
	quiet.Level = zap.NewAtomicLevelAt(zap.ErrorLevel)
	logger, err := quiet.Build()
	if err != nil {
		panic(err)
	}
	corelog.InitializeLogger(logger, &quiet)
	corelog.UpdateLoggingConfig(map[string]string{"log.level": "ERROR"})
	services := entrypoint.StartAllServicesWithManualScheduler()
	proxy, is := services.RMProxy.(*rmproxy.RMProxy)
	if !is {
		panic(fmt.Sprintf("unexpected proxy %T", services.RMProxy))
	}
	objects.SetReservationDelay(never)
	return &core{services: services, proxy: proxy}
}

// play sends one step to the core, and returns when the core has nothing more to decide.
func (c *core) play(next *step) error {
	var err error
	switch next.Method {
	case "RegisterResourceManager":
		request := &si.RegisterResourceManagerRequest{}
		read(next.Message, request)
		c.rmID, c.config, c.inForce = request.GetRmID(), request.GetConfig(), request.GetConfig()
		_, err = c.proxy.RegisterResourceManager(request, c)
		// A registration sets the core's log level to INFO.
		corelog.UpdateLoggingConfig(map[string]string{"log.level": "ERROR"})
		return err
	case "UpdateAllocation":
		request := &si.AllocationRequest{}
		read(next.Message, request)
		err = c.proxy.UpdateAllocation(request)
	case "UpdateApplication":
		request := &si.ApplicationRequest{}
		read(next.Message, request)
		err = c.proxy.UpdateApplication(request)
	case "UpdateNode":
		request := &si.NodeRequest{}
		read(next.Message, request)
		err = c.proxy.UpdateNode(request)
	case "elapse":
		return c.elapse(next)
	default:
		err = fmt.Errorf("unknown method %q", next.Method)
	}
	if err != nil {
		return err
	}
	return c.settle()
}

// elapse lets delays be over: the time of a play passes in these steps only.
func (c *core) elapse(next *step) error {
	attempts := preemptAttemptFrequency
	preemptAttemptFrequency = 0
	defer func() { preemptAttemptFrequency = attempts }()
	if err := c.configure(next.Config); err != nil {
		return err
	}
	if next.Reserves {
		objects.SetReservationDelay(0)
		defer objects.SetReservationDelay(never)
	}
	if err := c.settle(); err != nil {
		return err
	}
	return c.configure(c.config)
}

func (c *core) configure(text string) error {
	c.inForce = text
	err := c.proxy.UpdateConfiguration(&si.UpdateConfigurationRequest{RmID: c.rmID, PolicyGroup: "queues", Config: text})
	corelog.UpdateLoggingConfig(map[string]string{"log.level": "ERROR"})
	return err
}

// settle runs cycles until the core is idle.
func (c *core) settle() error {
	if err := c.flush(); err != nil {
		return err
	}
	for idle := 0; idle < idleCycles; {
		if schedule(c.services.Scheduler.GetClusterContext()) {
			idle = 0
			continue
		}
		idle++
	}
	return c.flush()
}

// flush waits until the core has read all that was sent, and has sent all that it decided.
func (c *core) flush() error {
	// The configuration in force, again: it changes nothing and is answered in the order of the requests.
	if err := c.configure(c.inForce); err != nil {
		return err
	}
	sent := make(chan *rmevent.Result, 1)
	c.proxy.GetRMEventHandler().HandleEvent(&rmevent.RMNewAllocationsEvent{RmID: c.rmID, Channel: sent})
	<-sent
	return nil
}

// queues returns the path of each application's queue.
func (c *core) queues() map[string]string {
	found := map[string]string{}
	for _, partition := range c.services.Scheduler.GetClusterContext().GetPartitionMapClone() {
		for _, each := range partition.GetApplications() {
			found[each.ApplicationID] = each.GetQueuePath()
		}
	}
	return found
}

func (c *core) take() []heard {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	answers := c.answers
	c.answers = nil
	return answers
}

func (c *core) put(method string, message proto.Message) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.answers = append(c.answers, heard{method, message})
}

// The core's callbacks.

func (c *core) UpdateAllocation(response *si.AllocationResponse) error {
	c.put("UpdateAllocation", response)
	return nil
}

func (c *core) UpdateApplication(response *si.ApplicationResponse) error {
	c.put("UpdateApplication", response)
	return nil
}

func (c *core) UpdateNode(response *si.NodeResponse) error {
	c.put("UpdateNode", response)
	return nil
}

// Every node fits, and nobody reads events or states.

func (c *core) Predicates(*si.PredicatesArgs) error { return nil }

func (c *core) PreemptionPredicates(args *si.PreemptionPredicatesArgs) *si.PreemptionPredicatesResponse {
	return &si.PreemptionPredicatesResponse{Success: true, Index: args.GetStartIndex()}
}

func (c *core) SendEvent([]*si.EventRecord) {}

func (c *core) UpdateContainerSchedulingState(*si.UpdateContainerSchedulingStateRequest) {}
