package gateway

import (
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Messages are cut into pieces of at most so many items. Cutting never changes the outcome, and no record of the log
// becomes too large: YuniKorn's shim registers all nodes of a cluster in one message.
const itemsAtOnce = 500

// Number of the field responseSequence, which Muster adds to the three responses (proto/si/v1/si.proto).
const responseSequenceField = 50001

// sequenceOf is the place of a response in the RM's one order of responses; 0: it has none. The Go package of the
// scheduler interface does not know the field, so it is among the unknown ones.
func sequenceOf(response proto.Message) uint64 {
	for unknown := response.ProtoReflect().GetUnknown(); len(unknown) > 0; {
		number, kind, length := protowire.ConsumeTag(unknown)
		if length < 0 {
			return 0
		}
		unknown = unknown[length:]
		if number == responseSequenceField && kind == protowire.VarintType {
			if value, read := protowire.ConsumeVarint(unknown); read >= 0 {
				return value
			}
			return 0
		}
		if length = protowire.ConsumeFieldValue(number, kind, unknown); length < 0 {
			return 0
		}
		unknown = unknown[length:]
	}
	return 0
}

// piece is a part of a request, and the keys of its items that answers name. Pieces that join may be sent as one message.
type piece struct {
	message proto.Message
	keys    []string
	joins   bool
}

// Keys of the journal. An ask and its release are proved by different answers.
func askKey(application, key string) string { return "a\x00" + application + "\x00" + key }

// releaseKey names a release with its message, which Muster repeats. When Muster ends an allocation for another reason
// (its node or its application was removed), the message says so, and proves nothing about a release under way.
func releaseKey(release *si.AllocationRelease) string {
	return "r\x00" + release.ApplicationID + "\x00" + release.AllocationKey + "\x00" + release.Message
}

func allocationPieces(rmID string, request *si.AllocationRequest) []piece {
	var pieces []piece
	// Releases come first, as within one message (docs/resource-managers.md, Messages). So they join no asks, which may be older.
	for releases := range chunks(request.GetReleases().GetAllocationsToRelease()) {
		keys := make([]string, 0, len(releases))
		for _, release := range releases {
			keys = append(keys, releaseKey(release))
		}
		pieces = append(pieces, piece{&si.AllocationRequest{
			RmID: rmID, Releases: &si.AllocationReleasesRequest{AllocationsToRelease: releases},
		}, keys, false})
	}
	for allocations := range chunks(request.GetAllocations()) {
		keys := make([]string, 0, len(allocations))
		for _, allocation := range allocations {
			keys = append(keys, askKey(allocation.ApplicationID, allocation.AllocationKey))
		}
		pieces = append(pieces, piece{&si.AllocationRequest{RmID: rmID, Allocations: allocations}, keys, true})
	}
	return pieces
}

func applicationPieces(rmID string, request *si.ApplicationRequest) []piece {
	var pieces []piece
	for added := range chunks(request.GetNew()) {
		keys := make([]string, 0, len(added))
		for _, application := range added {
			keys = append(keys, application.ApplicationID)
		}
		pieces = append(pieces, piece{&si.ApplicationRequest{RmID: rmID, New: added}, keys, true})
	}
	for removed := range chunks(request.GetRemove()) {
		pieces = append(pieces, piece{&si.ApplicationRequest{RmID: rmID, Remove: removed}, nil, false})
	}
	return pieces
}

func nodePieces(rmID string, request *si.NodeRequest) []piece {
	var pieces []piece
	for nodes := range chunks(request.GetNodes()) {
		keys := make([]string, 0, len(nodes))
		for _, node := range nodes {
			keys = append(keys, node.NodeID)
		}
		pieces = append(pieces, piece{&si.NodeRequest{RmID: rmID, Nodes: nodes}, keys, false})
	}
	return pieces
}

// chunks yields the items, at most itemsAtOnce together.
func chunks[T any](items []T) func(func([]T) bool) {
	return func(yield func([]T) bool) {
		for len(items) > 0 {
			count := min(len(items), itemsAtOnce)
			if !yield(items[:count:count]) {
				return
			}
			items = items[count:]
		}
	}
}

// What a numbered response proves to be taken, by keys of the journal.

func allocationKeys(response *si.AllocationResponse) []string {
	var keys []string
	for _, made := range response.New {
		keys = append(keys, askKey(made.ApplicationID, made.AllocationKey))
	}
	for _, rejected := range response.RejectedAllocations {
		keys = append(keys, askKey(rejected.ApplicationID, rejected.AllocationKey))
	}
	for _, released := range response.Released {
		if released.TerminationType == si.TerminationType_STOPPED_BY_RM {
			keys = append(keys, releaseKey(released))
		}
	}
	return keys
}

func applicationKeys(response *si.ApplicationResponse) []string {
	var keys []string
	for _, accepted := range response.Accepted {
		keys = append(keys, accepted.ApplicationID)
	}
	for _, rejected := range response.Rejected {
		keys = append(keys, rejected.ApplicationID)
	}
	return keys
}

func nodeKeys(response *si.NodeResponse) []string {
	var keys []string
	for _, accepted := range response.Accepted {
		keys = append(keys, accepted.NodeID)
	}
	for _, rejected := range response.Rejected {
		keys = append(keys, rejected.NodeID)
	}
	return keys
}
