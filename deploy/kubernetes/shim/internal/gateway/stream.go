package gateway

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// What a stream keeps. A pod has a handful of messages of about 1 KB, so a whole large cluster may be unsent while
	// Muster is away. Above this the shim's caller waits.
	journalMessages = 200_000
	journalBytes    = 256 << 20
	// A message that was sent so long ago counts as taken, if room is needed.
	resendWindow = time.Minute
	// After a message so much time passes before the next one of the same kind: what comes meanwhile goes along with it.
	gather = 5 * time.Millisecond
	// Responses that wait for the shim. The gateway sends no more meanwhile.
	undelivered = 1024
)

// stream is one of the three streams of the scheduler interface. It outlives its connections: what may have been lost is
// sent again, and responses go on where they ended.
type stream[Response proto.Message] struct {
	name     string
	link     *link
	progress *progress
	response func() Response
	keys     func(Response) []string // what a response proves to be taken
	deliver  func(Response) error
	handled  func(uint64)

	mutex   sync.Mutex
	journal *journal
	changed chan struct{} // closed when the writer may have something to do, or a sender room
	ended   error
	opened  bool   // a connection was tried before: the next one names its position
	last    uint64 // the last numbered response that came
	pending chan delivery[Response]
}

type delivery[Response proto.Message] struct {
	response Response
	sequence uint64
}

func newStream[Response proto.Message](
	name string, l *link, p *progress, response func() Response, keys func(Response) []string, deliver func(Response) error,
) *stream[Response] {
	return &stream[Response]{
		name: name, link: l, progress: p, response: response, keys: keys, deliver: deliver,
		handled: func(uint64) {},
		journal: newJournal(journalMessages, journalBytes, resendWindow),
		changed: make(chan struct{}),
		pending: make(chan delivery[Response], undelivered),
	}
}

// send appends messages to the stream's order. It waits only while the journal is full, which is the back-pressure.
func (s *stream[Response]) send(pieces []piece) error {
	for _, each := range pieces {
		payload, err := proto.Marshal(each.message)
		if err != nil {
			return err
		}
		if err := s.append(payload, each.keys, each.joins); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream[Response]) append(payload []byte, keys []string, joins bool) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for s.ended == nil && !s.journal.hasRoom(time.Now()) {
		changed, wait := s.changed, s.journal.roomIn(time.Now())
		s.mutex.Unlock()
		s.link.log.Warn("the journal is full: waiting for muster", zap.String("stream", s.name))
		select {
		case <-changed:
		case <-time.After(max(wait, time.Second)):
		}
		s.mutex.Lock()
	}
	if s.ended != nil {
		return s.ended
	}
	s.journal.append(payload, keys, joins)
	s.wake()
	return nil
}

// end lets waiting senders go.
func (s *stream[Response]) end(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.ended = err
	s.wake()
}

// unsent is the number of messages that wait for the network.
func (s *stream[Response]) unsent() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return len(s.journal.entries) - s.journal.sent
}

func (s *stream[Response]) wake() {
	s.link.metrics.kept.WithLabelValues(s.name).Set(float64(len(s.journal.entries)))
	close(s.changed)
	s.changed = make(chan struct{})
}

// run keeps the stream open until ctx is over, and hands responses to the shim, in order.
func (s *stream[Response]) run(ctx context.Context, method string) {
	go s.deliverAll(ctx)
	s.link.keep(ctx, s.name, method, s.position, s.use)
}

func (s *stream[Response]) position() (uint64, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	before := s.opened
	s.opened = true
	return s.last, before
}

func (s *stream[Response]) use(ctx context.Context, c *connection) error {
	s.mutex.Lock()
	again := s.journal.lost()
	s.mutex.Unlock()
	s.link.metrics.again.WithLabelValues(s.name).Add(float64(again))
	var writer sync.WaitGroup
	writer.Add(2)
	go func() { defer writer.Done(); s.write(ctx, c) }()
	go func() {
		defer writer.Done()
		// The gateway sends its headers when the stream has its place.
		if headers, err := c.Header(); err == nil && headers != nil {
			s.link.opened(s.name, true)
		}
	}()
	err := s.read(ctx, c)
	c.end()
	writer.Wait()
	return err
}

func (s *stream[Response]) write(ctx context.Context, c *connection) {
	var last time.Time // when a message was written
	for ctx.Err() == nil {
		s.mutex.Lock()
		next, changed := s.journal.unsent(), s.changed
		s.mutex.Unlock()
		if len(next) == 0 {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		// YuniKorn's shim sends one pod at a time. The first one goes at once, and those of a burst together.
		if early := gather - time.Since(last); early > 0 && next[0].joins && len(next) < itemsAtOnce {
			select {
			case <-time.After(early):
			case <-ctx.Done():
			}
			last = time.Time{}
			continue
		}
		payload := joined(next)
		if c.SendMsg(&payload) != nil {
			return // the reader has the reason
		}
		last = time.Now()
		s.link.metrics.sent.WithLabelValues(s.name).Inc()
		s.mutex.Lock()
		s.journal.wrote(next, last)
		s.mutex.Unlock()
	}
}

func (s *stream[Response]) read(ctx context.Context, c *connection) error {
	for {
		var payload []byte
		if err := c.RecvMsg(&payload); err != nil {
			return err
		}
		c.heard = true
		response := s.response()
		if err := proto.Unmarshal(payload, response); err != nil {
			return status.Errorf(codes.Internal, "a response that is none: %v", err)
		}
		sequence := sequenceOf(response)
		if s.repeated(sequence) {
			s.link.metrics.repeated.WithLabelValues(s.name).Inc()
			continue
		}
		s.progress.came(sequence)
		// The journal hears of it before the shim does: the shim may wait for room in the journal.
		s.mutex.Lock()
		if sequence > 0 {
			for _, key := range s.keys(response) {
				s.journal.answered(key)
			}
			s.wake()
		}
		s.mutex.Unlock()
		select {
		case s.pending <- delivery[Response]{response, sequence}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if sequence > 0 {
			s.mutex.Lock()
			s.last = sequence
			s.mutex.Unlock()
		}
	}
}

func (s *stream[Response]) repeated(sequence uint64) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return sequence > 0 && sequence <= s.last
}

func (s *stream[Response]) deliverAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-s.pending:
			if err := s.deliver(next.response); err != nil {
				s.link.log.Error("the shim could not use a response", zap.String("stream", s.name), zap.Error(err))
			}
			s.handled(next.sequence)
			s.link.metrics.received.WithLabelValues(s.name).Inc()
		}
	}
}
