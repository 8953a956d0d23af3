package gateway

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

func writeAll(j *journal, now time.Time) []string {
	var written []string
	for next := j.unsent(); len(next) > 0; next = j.unsent() {
		written = append(written, string(joined(next)))
		j.wrote(next, now)
	}
	return written
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func TestWhatIsNotKnownToBeTakenIsSentAgainInOrder(t *testing.T) {
	j, now := newJournal(100, 1<<20, time.Minute), time.Now()
	for _, text := range numbers(0, 5) {
		j.append([]byte(text), []string{"key" + text}, false)
	}
	if got := writeAll(j, now); !slices.Equal(got, numbers(0, 5)) {
		t.Fatalf("written %v", got)
	}
	j.answered("key2") // and so 0 and 1 were taken, too
	j.append([]byte("5"), nil, false)
	if again := j.lost(); again != 2 {
		t.Fatalf("sent again: %d, expected 2", again)
	}
	if got := writeAll(j, now); !slices.Equal(got, numbers(3, 6)) {
		t.Fatalf("written %v", got)
	}
}

func TestAnAnswerProvesTheOldestMessageOfItsKey(t *testing.T) {
	j, now := newJournal(100, 1<<20, time.Minute), time.Now()
	for _, text := range numbers(0, 3) {
		j.append([]byte(text), []string{"node"}, false)
	}
	writeAll(j, now)
	for _, left := range []int{2, 1, 0, 0} {
		j.answered("node")
		if len(j.entries) != left {
			t.Fatalf("%d messages are kept, expected %d", len(j.entries), left)
		}
	}
	if len(j.indexes) != 0 || j.bytes != 0 {
		t.Fatalf("left behind: %v, %d bytes", j.indexes, j.bytes)
	}
}

func TestAnAnswerDoesNotProveWhatWasNeverSent(t *testing.T) {
	j := newJournal(100, 1<<20, time.Minute)
	j.append([]byte("0"), []string{"key"}, false)
	j.answered("key") // an answer to an earlier life of the key
	if len(j.unsent()) == 0 {
		t.Fatal("a message that was never sent left the journal")
	}
}

func TestAnAnswerToTheFirstSendingEndsTheSecond(t *testing.T) {
	j, now := newJournal(100, 1<<20, time.Minute), time.Now()
	j.append([]byte("0"), []string{"a"}, false)
	j.append([]byte("1"), []string{"b"}, false)
	writeAll(j, now)
	j.lost()
	being := j.unsent()
	j.answered("a")
	j.wrote(being, now) // while it was being written again
	if got := writeAll(j, now); !slices.Equal(got, []string{"1"}) {
		t.Fatalf("written %v, expected only what has no answer", got)
	}
}

func TestAFullJournalForgetsOnlyWhatIsOld(t *testing.T) {
	j, now := newJournal(3, 1<<20, time.Minute), time.Now()
	for _, text := range numbers(0, 3) {
		j.append([]byte(text), nil, false)
	}
	if j.hasRoom(now.Add(time.Hour)) {
		t.Fatal("room for one more, though nothing was sent")
	}
	writeAll(j, now)
	if j.hasRoom(now.Add(time.Minute - time.Second)) {
		t.Fatal("room for one more within the window")
	}
	if !j.hasRoom(now.Add(time.Minute)) || len(j.entries) != 2 {
		t.Fatalf("no room after the window, or too much: %d messages", len(j.entries))
	}
	if full := newJournal(100, 2, time.Minute); true {
		full.append([]byte("ab"), nil, false)
		if full.hasRoom(now) {
			t.Fatal("room for one more over the limit of bytes")
		}
	}
}

func TestWhatJoinsIsSentTogetherAndNothingOvertakes(t *testing.T) {
	j, now := newJournal(100, 1<<20, time.Minute), time.Now()
	for i, text := range numbers(0, 8) {
		j.append([]byte(text), []string{"key" + text}, i != 3 && i != 4)
	}
	if got, want := writeAll(j, now), []string{"012", "3", "4", "567"}; !slices.Equal(got, want) {
		t.Fatalf("written %v, expected %v", got, want)
	}
	// An answer to one of them proves itself and what is older, not what was sent along with it.
	j.answered("key5")
	if again := j.lost(); again != 2 {
		t.Fatalf("sent again: %d, expected 2", again)
	}
	if got, want := writeAll(j, now), []string{"67"}; !slices.Equal(got, want) {
		t.Fatalf("written %v, expected %v", got, want)
	}
}

func TestAJoinedMessageIsBounded(t *testing.T) {
	j, now := newJournal(10_000, 1<<30, time.Minute), time.Now()
	for range 2*itemsAtOnce + 1 {
		j.append([]byte("x"), []string{"key"}, true)
	}
	large := make([]byte, joinedBytes/2+1)
	for range 3 {
		j.append(large, []string{"large"}, true)
	}
	var lengths []int
	for _, each := range writeAll(j, now) {
		lengths = append(lengths, len(each))
	}
	if want := []int{itemsAtOnce, itemsAtOnce, 1 + len(large), len(large), len(large)}; !slices.Equal(lengths, want) {
		t.Fatalf("lengths %v, expected %v", lengths, want)
	}
}
