package gateway

import (
	"testing"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
)

func TestEventsThatThePodHasAlreadyAreNotWritten(t *testing.T) {
	n := newNotices(nil)
	n.events([]*si.EventRecord{
		{Type: si.EventRecord_REQUEST, Message: "New application added"},
		{Type: si.EventRecord_REQUEST, Message: "it does not fit"},
		{Type: si.EventRecord_REQUEST, Message: "Successful allocation"},
		{Type: si.EventRecord_NODE, Message: "Node added to the scheduler"},
	})
	if len(n.records) != 2 || n.records[0].Message != "it does not fit" || n.records[1].Type != si.EventRecord_NODE {
		t.Errorf("kept %v", n.records)
	}
}
