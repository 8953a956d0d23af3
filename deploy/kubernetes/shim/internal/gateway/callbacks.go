package gateway

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/api"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"muster/kubernetes/shim/muster"
)

const (
	callbackName   = "callback"
	callbackMethod = "/muster.v1.Callbacks/Connect"

	// The default deadline of a question. A later answer is of no use, and answers of that time may be lost.
	answersKept   = 10 * time.Second
	answersAtOnce = 500
	maxReason     = 1024
)

// callbacks is the stream on which Muster asks YuniKorn's shim for predicates and tells it of events and scheduling
// states.
type callbacks struct {
	link     *link
	progress *progress
	rm       api.ResourceManagerCallback
	notices  *notices
	places   chan struct{} // predicates that run at the same time
	welcome  chan struct{} // closed once the stream was open
	once     sync.Once

	mutex    sync.Mutex
	unsent   []answer
	written  []answer
	changed  chan struct{}
	opened   bool
	last     uint64
	eventsAt *uint64 // the id of the last event
	asksAt   *uint64 // the position of the last event of an ask
}

// answer is what the shim says to a question; add puts it into a message.
type answer struct {
	at  time.Time // when it was written
	add func(*muster.FromResourceManager)
}

func newCallbacks(l *link, p *progress, rm api.ResourceManagerCallback) *callbacks {
	return &callbacks{
		link: l, progress: p, rm: rm, notices: newNotices(rm),
		places:  make(chan struct{}, 4*runtime.GOMAXPROCS(0)),
		welcome: make(chan struct{}), changed: make(chan struct{}),
	}
}

func (c *callbacks) run(ctx context.Context) {
	go c.notices.run(ctx)
	c.link.keep(ctx, callbackName, callbackMethod, c.position, c.use)
}

func (c *callbacks) position() (uint64, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	before := c.opened
	c.opened = true
	return c.last, before
}

func (c *callbacks) use(ctx context.Context, connection *connection) error {
	hello, err := proto.Marshal(&muster.FromResourceManager{Hello: c.hello()})
	if err != nil {
		return err
	}
	if err := connection.SendMsg(&hello); err != nil {
		var nothing []byte
		return connection.RecvMsg(&nothing) // which has the reason
	}
	c.rewind()
	var writer sync.WaitGroup
	writer.Add(1)
	go func() { defer writer.Done(); c.write(ctx, connection) }()
	err = c.read(ctx, connection)
	connection.end()
	writer.Wait()
	return err
}

func (c *callbacks) hello() *muster.Hello {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return &muster.Hello{
		RmId: c.link.rmID, Predicates: true, PreemptionPredicates: true, SchedulingStates: true, StateDump: true,
		Events: true, EventsAfter: c.eventsAt, RequestEventsAfter: c.asksAt,
		// Asks that depend on others say so by a tag (scopes.go). All others may be open at once.
		OpenProposals: muster.OpenProposals_OPEN_PROPOSALS_ALL,
	}
}

// rewind lets answers that may be lost be sent again; a repeated answer is harmless.
func (c *callbacks) rewind() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.forget()
	c.unsent = append(c.written, c.unsent...)
	c.written = nil
	c.wake()
}

func (c *callbacks) forget() {
	old := 0
	for old < len(c.written) && time.Since(c.written[old].at) > answersKept {
		old++
	}
	c.written = c.written[old:]
}

func (c *callbacks) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *callbacks) say(add func(*muster.FromResourceManager)) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.unsent = append(c.unsent, answer{add: add})
	c.wake()
}

func (c *callbacks) write(ctx context.Context, connection *connection) {
	for ctx.Err() == nil {
		c.mutex.Lock()
		count := min(len(c.unsent), answersAtOnce)
		if count == 0 {
			changed := c.changed
			c.mutex.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		message, now := &muster.FromResourceManager{}, time.Now()
		for _, each := range c.unsent[:count] {
			each.at = now
			each.add(message)
			c.written = append(c.written, each)
		}
		c.unsent = c.unsent[count:]
		c.forget()
		c.mutex.Unlock()
		payload, err := proto.Marshal(message)
		if err != nil {
			c.link.log.Error("answers that cannot be encoded", zap.Error(err))
			continue
		}
		if connection.SendMsg(&payload) != nil {
			return // the reader has the reason
		}
		c.link.metrics.sent.WithLabelValues(callbackName).Inc()
	}
}

func (c *callbacks) read(ctx context.Context, connection *connection) error {
	for {
		var payload []byte
		if err := connection.RecvMsg(&payload); err != nil {
			return err
		}
		connection.heard = true
		message := &muster.ToResourceManager{}
		if err := proto.Unmarshal(payload, message); err != nil {
			return status.Errorf(codes.Internal, "a message that is none: %v", err)
		}
		if message.Welcome != nil {
			c.link.opened(callbackName, true)
			c.once.Do(func() { close(c.welcome) })
		}
		if sequence := message.ResponseSequence; sequence > 0 {
			c.progress.came(sequence)
			c.mutex.Lock()
			repeated := sequence <= c.last
			c.last = max(c.last, sequence)
			c.mutex.Unlock()
			if repeated {
				c.link.metrics.repeated.WithLabelValues(callbackName).Inc()
				continue
			}
		}
		c.handle(ctx, message)
		c.link.metrics.received.WithLabelValues(callbackName).Inc()
	}
}

func (c *callbacks) handle(ctx context.Context, message *muster.ToResourceManager) {
	for _, question := range message.Predicates {
		go c.predicates(ctx, question, time.Now())
	}
	for _, question := range message.PreemptionPredicates {
		go c.preemption(ctx, question, time.Now())
	}
	for _, question := range message.StateDumps {
		go c.stateDump(question)
	}
	for _, state := range message.SchedulingStates {
		c.notices.state(state)
	}
	if events := message.Events; events != nil {
		records := make([]*si.EventRecord, 0, len(events.Events))
		c.mutex.Lock()
		for _, event := range events.Events {
			records = append(records, event.Record)
			if event.Id != nil {
				c.eventsAt = event.Id
			}
		}
		if events.RequestPosition != nil {
			c.asksAt = events.RequestPosition
		}
		c.mutex.Unlock()
		c.notices.events(records)
	}
}

// predicates answers whether the pod may go to the node. The shim must have handled what was allocated before.
func (c *callbacks) predicates(ctx context.Context, question *muster.PredicatesQuestion, came time.Time) {
	const kind = "predicates"
	wait, cancel := context.WithTimeout(ctx, answersKept)
	defer cancel()
	if c.progress.reached(wait, question.AfterResponse) != nil {
		c.link.metrics.questions.WithLabelValues(kind, "late").Inc()
		return // not answered in time: the node counts as refused for a while
	}
	c.places <- struct{}{}
	reason := guarded(func() string {
		if err := c.rm.Predicates(question.Args); err != nil {
			return inALine(err)
		}
		return ""
	})
	<-c.places
	c.count(kind, reason == "", came)
	c.say(func(message *muster.FromResourceManager) {
		message.Predicates = append(message.Predicates, &muster.PredicatesAnswer{
			Id: question.Id, Fits: reason == "", Reason: reason,
		})
	})
}

func (c *callbacks) preemption(_ context.Context, question *muster.PreemptionPredicatesQuestion, came time.Time) {
	var response *si.PreemptionPredicatesResponse
	c.places <- struct{}{}
	reason := guarded(func() string {
		response = c.rm.PreemptionPredicates(question.Args)
		return ""
	})
	<-c.places
	if response == nil {
		response = &si.PreemptionPredicatesResponse{Index: -1}
	}
	c.count("preemption", response.Success, came)
	c.say(func(message *muster.FromResourceManager) {
		message.PreemptionPredicates = append(message.PreemptionPredicates, &muster.PreemptionPredicatesAnswer{
			Id: question.Id, Response: response, Reason: reason,
		})
	})
}

func (c *callbacks) stateDump(question *muster.StateDumpQuestion) {
	said := &muster.StateDumpAnswer{Id: question.Id}
	if plugin, has := c.rm.(api.StateDumpPlugin); has {
		said.Error = guarded(func() string {
			dump, err := plugin.GetStateDump()
			if err != nil {
				return inALine(err)
			}
			said.Json = dump
			return ""
		})
	} else {
		said.Error = "the shim has no state dump"
	}
	c.say(func(message *muster.FromResourceManager) { message.StateDumps = append(message.StateDumps, said) })
}

func (c *callbacks) count(kind string, yes bool, came time.Time) {
	result := "no"
	if yes {
		result = "yes"
	}
	c.link.metrics.questions.WithLabelValues(kind, result).Inc()
	c.link.metrics.answering.WithLabelValues(kind).Observe(time.Since(came).Seconds())
}

// guarded calls YuniKorn's shim. If it panics, the answer is no, and the process goes on.
func guarded(call func() string) (reason string) {
	defer func() {
		if panicked := recover(); panicked != nil {
			reason = cut(fmt.Sprintf("the shim failed: %v", panicked))
		}
	}()
	return call()
}
