package main

import (
	"context"
	"sync"
)

// mailbox is a queue without a limit. put never waits.
type mailbox[T any] struct {
	mutex sync.Mutex
	items []T
	some  chan struct{} // has one element while there are items
}

func newMailbox[T any]() *mailbox[T] {
	return &mailbox[T]{some: make(chan struct{}, 1)}
}

func (m *mailbox[T]) put(item T) {
	m.mutex.Lock()
	m.items = append(m.items, item)
	m.mutex.Unlock()
	select {
	case m.some <- struct{}{}:
	default:
	}
}

// take waits for items and returns all of them, or the error of ctx.
func (m *mailbox[T]) take(ctx context.Context) ([]T, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.some:
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	items := m.items
	m.items = nil
	return items, nil
}
