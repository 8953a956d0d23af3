package gateway

import (
	"context"
	"sync"
)

// progress is how far the shim has come in the RM's one order of responses. Streams have no order among each other, so a
// question on the callback stream says behind which response of the allocation stream it is to be answered.
type progress struct {
	mutex   sync.Mutex
	first   uint64 // the lowest number that any stream brought since the registration; 0: none yet
	handled uint64 // of the allocation stream
	moved   chan struct{}
}

func newProgress() *progress { return &progress{moved: make(chan struct{})} }

// came notes a response of any stream. Numbers below the first one belong to an earlier registration.
func (p *progress) came(sequence uint64) {
	if sequence == 0 {
		return
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.first == 0 || sequence < p.first {
		p.first = sequence
		p.wake()
	}
}

// took notes that the shim has handled a response of the allocation stream.
func (p *progress) took(sequence uint64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if sequence > p.handled {
		p.handled = sequence
		p.wake()
	}
}

// reached waits until the shim has handled this response of the allocation stream, or a later one.
func (p *progress) reached(ctx context.Context, sequence uint64) error {
	for {
		p.mutex.Lock()
		done := p.handled >= sequence || (p.first > 0 && sequence < p.first)
		moved := p.moved
		p.mutex.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *progress) wake() {
	close(p.moved)
	p.moved = make(chan struct{})
}
