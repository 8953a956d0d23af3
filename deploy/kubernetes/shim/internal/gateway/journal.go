package gateway

import (
	"slices"
	"time"
)

// Messages that are joined have so many bytes together at most.
const joinedBytes = 256 << 10

// entry is one message of a stream.
type entry struct {
	index   uint64
	payload []byte
	keys    []string  // of what a numbered answer proves to be taken
	joins   bool      // it may be sent in one message with others that may
	sentAt  time.Time // of the last sending
}

// journal keeps the messages of one stream, in order: those that were sent and may be lost with the connection, then
// those that wait for the network. A message is sent when it was written to a connection. It is taken when it is on
// Muster's log. Nothing reports that, but a numbered answer to one of its items proves it for the message and for all
// earlier ones, because a stream keeps its order up to the log. After a lost connection everything that is not known to
// be taken is sent again, in the same order; Muster takes what it knows already for an update.
//
// A journal belongs to one goroutine at a time.
type journal struct {
	entries  []*entry
	sent     int // how many of entries, from the first, this connection was given
	bytes    int
	next     uint64
	indexes  map[string][]uint64 // key → its messages that are kept, oldest first
	messages int                 // limits of what is kept; window: after it a sent message counts as taken, if room is needed
	size     int
	window   time.Duration
}

func newJournal(messages, size int, window time.Duration) *journal {
	return &journal{indexes: map[string][]uint64{}, messages: messages, size: size, window: window}
}

func (j *journal) append(payload []byte, keys []string, joins bool) {
	j.entries = append(j.entries, &entry{index: j.next, payload: payload, keys: keys, joins: joins})
	j.bytes += len(payload)
	for _, key := range keys {
		j.indexes[key] = append(j.indexes[key], j.next)
	}
	j.next++
}

// unsent is what goes to the network next, in one message; none: nothing waits.
func (j *journal) unsent() []*entry {
	waiting := j.entries[j.sent:]
	count, items, bytes := 0, 0, 0
	for _, e := range waiting[:min(len(waiting), itemsAtOnce)] {
		items, bytes = items+len(e.keys), bytes+len(e.payload)
		if count > 0 && (!e.joins || !waiting[0].joins || items > itemsAtOnce || bytes > joinedBytes) {
			break
		}
		count++
	}
	return slices.Clone(waiting[:count])
}

// wrote notes that the messages were written. (They may have left the journal meanwhile: answers to their first sending came.)
func (j *journal) wrote(together []*entry, now time.Time) {
	for _, e := range together {
		e.sentAt = now
		if j.sent < len(j.entries) && j.entries[j.sent] == e {
			j.sent++
		}
	}
}

// joined is one message of several. The wire format has that property: the fields of all of them follow each other.
func joined(together []*entry) []byte {
	if len(together) == 1 {
		return together[0].payload
	}
	var payload []byte
	for _, e := range together {
		payload = append(payload, e.payload...)
	}
	return payload
}

// lost notes the end of a connection, and returns how many messages are sent again.
func (j *journal) lost() int {
	again := j.sent
	j.sent = 0
	return again
}

// answered notes a numbered answer for a key: its oldest message was taken, and so were all before it.
func (j *journal) answered(key string) {
	indexes := j.indexes[key]
	if len(indexes) == 0 {
		return
	}
	oldest := indexes[0]
	for len(j.entries) > 0 && j.entries[0].index <= oldest && !j.entries[0].sentAt.IsZero() {
		j.drop()
	}
}

// hasRoom says whether one more message may be kept. For it, messages older than the window are forgotten.
func (j *journal) hasRoom(now time.Time) bool {
	for j.isFull() && j.sent > 0 && now.Sub(j.entries[0].sentAt) >= j.window {
		j.drop()
	}
	return !j.isFull()
}

// roomIn is the time after which hasRoom may find a message older than the window.
func (j *journal) roomIn(now time.Time) time.Duration {
	if j.sent == 0 {
		return j.window
	}
	return max(j.window-now.Sub(j.entries[0].sentAt), 0)
}

func (j *journal) isFull() bool { return len(j.entries) >= j.messages || j.bytes >= j.size }

func (j *journal) drop() {
	oldest := j.entries[0]
	j.entries[0] = nil
	j.entries = j.entries[1:]
	j.bytes -= len(oldest.payload)
	j.sent = max(j.sent-1, 0)
	for _, key := range oldest.keys {
		// (Messages leave in order, so this one is the first of each of its keys.)
		if rest := j.indexes[key][1:]; len(rest) > 0 {
			j.indexes[key] = rest
		} else {
			delete(j.indexes, key)
		}
	}
}
