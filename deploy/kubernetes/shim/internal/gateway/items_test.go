package gateway

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
)

// numbered is a response as Muster sends it: with a number that the interface's own package does not know.
func numbered[M proto.Message](response M, sequence uint64) M {
	field := protowire.AppendTag(nil, responseSequenceField, protowire.VarintType)
	response.ProtoReflect().SetUnknown(protowire.AppendVarint(field, sequence))
	return response
}

func TestTheNumberOfAResponseIsRead(t *testing.T) {
	payload, err := proto.Marshal(numbered(&si.NodeResponse{Accepted: []*si.AcceptedNode{{NodeID: "n"}}}, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	read := &si.NodeResponse{}
	if err := proto.Unmarshal(payload, read); err != nil {
		t.Fatal(err)
	}
	if got := sequenceOf(read); got != 1<<40 {
		t.Fatalf("number %d", got)
	}
	if got := sequenceOf(&si.NodeResponse{}); got != 0 {
		t.Fatalf("number %d of a response without one", got)
	}
	// Another addition before it does not hide it.
	other := protowire.AppendBytes(protowire.AppendTag(nil, 60000, protowire.BytesType), []byte("x"))
	read.ProtoReflect().SetUnknown(append(other, read.ProtoReflect().GetUnknown()...))
	if got := sequenceOf(read); got != 1<<40 {
		t.Fatalf("number %d behind another field", got)
	}
}

func TestLargeMessagesAreCutInOrder(t *testing.T) {
	request := &si.AllocationRequest{Releases: &si.AllocationReleasesRequest{
		AllocationsToRelease: []*si.AllocationRelease{{ApplicationID: "app", AllocationKey: "old"}},
	}}
	for range 2*itemsAtOnce + 1 {
		request.Allocations = append(request.Allocations, &si.Allocation{ApplicationID: "app", AllocationKey: "new"})
	}
	pieces := allocationPieces("rm", request)
	var counts []int
	for _, each := range pieces {
		message := each.message.(*si.AllocationRequest)
		if message.RmID != "rm" {
			t.Fatalf("rmID %q", message.RmID)
		}
		counts = append(counts, len(message.Allocations)+len(message.GetReleases().GetAllocationsToRelease()))
	}
	if len(counts) != 4 || counts[0] != 1 || counts[1] != itemsAtOnce || counts[3] != 1 {
		t.Fatalf("pieces of %v items", counts)
	}
	if pieces[0].keys[0] != releaseKey(request.Releases.AllocationsToRelease[0]) || pieces[1].keys[0] != askKey("app", "new") {
		t.Fatalf("keys %q, %q", pieces[0].keys, pieces[1].keys[:1])
	}
}

func TestJoinedAsksAreOneRequestInTheirOrder(t *testing.T) {
	var together []*entry
	var want []string
	for i := range 3 {
		ask := &si.Allocation{ApplicationID: "app", AllocationKey: strconv.Itoa(i), AllocationTags: map[string]string{"a": "b"}}
		for _, each := range allocationPieces("rm", &si.AllocationRequest{Allocations: []*si.Allocation{ask}}) {
			payload, err := proto.Marshal(each.message)
			if err != nil || !each.joins {
				t.Fatalf("joins: %v, error: %v", each.joins, err)
			}
			together = append(together, &entry{payload: payload})
		}
		want = append(want, ask.AllocationKey)
	}
	request := &si.AllocationRequest{}
	if err := proto.Unmarshal(joined(together), request); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, each := range request.Allocations {
		got = append(got, each.AllocationKey)
	}
	if !slices.Equal(got, want) || request.RmID != "rm" || request.Releases != nil {
		t.Fatalf("got %v", request)
	}
}

func TestOnlyTheAnswerToAReleaseProvesIt(t *testing.T) {
	release := &si.AllocationRelease{ApplicationID: "app", AllocationKey: "pod", TerminationType: si.TerminationType_STOPPED_BY_RM}
	sent := allocationPieces("rm", &si.AllocationRequest{Releases: &si.AllocationReleasesRequest{
		AllocationsToRelease: []*si.AllocationRelease{release},
	}})[0].keys[0]
	removed := proto.Clone(release).(*si.AllocationRelease)
	removed.Message = "Node n1 Removed"
	for message, proves := range map[*si.AllocationRelease]bool{release: true, removed: false} {
		answer := &si.AllocationResponse{Released: []*si.AllocationRelease{message}}
		if slices.Contains(allocationKeys(answer), sent) != proves {
			t.Errorf("an end with the message %q: proof %t expected", message.Message, proves)
		}
		if slices.Contains(allocationKeys(answer), askKey("app", "pod")) {
			t.Error("an end proves an ask, which may be a change that is under way")
		}
	}
}

func TestQuestionsWaitForWhatWasAllocatedBefore(t *testing.T) {
	p := newProgress()
	reached := func(sequence uint64) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		return p.reached(ctx, sequence)
	}
	if reached(0) != nil {
		t.Fatal("a question that waits for nothing waits")
	}
	if !errors.Is(reached(7), context.DeadlineExceeded) {
		t.Fatal("answered before anything came")
	}
	p.came(10) // of any stream: 7 belongs to an earlier registration
	if reached(7) != nil {
		t.Fatal("waits for a response of an earlier registration")
	}
	if reached(12) == nil {
		t.Fatal("answered before the shim has handled the response")
	}
	done := make(chan error)
	go func() { done <- p.reached(context.Background(), 12) }()
	p.took(13)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestPodsThatDependOnOthersAreAlone(t *testing.T) {
	terms := []v1.PodAffinityTerm{{TopologyKey: "zone"}}
	weighted := []v1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: terms[0]}}
	port := []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 80}}}}
	spread := func(how v1.UnsatisfiableConstraintAction) v1.PodSpec {
		return v1.PodSpec{TopologySpreadConstraints: []v1.TopologySpreadConstraint{{WhenUnsatisfiable: how}}}
	}
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	for name, each := range map[string]struct {
		spec  v1.PodSpec
		scope string
	}{
		"nothing":       {v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{ContainerPort: 80}}}}}, ""},
		"affinity":      {v1.PodSpec{Affinity: &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}}, "one"},
		"anti-affinity": {v1.PodSpec{Affinity: &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}}, "one"},
		"preferred":     {v1.PodSpec{Affinity: &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}}}, ""},
		"spread":        {spread(v1.DoNotSchedule), "one"},
		"soft spread":   {spread(v1.ScheduleAnyway), ""},
		"claim":         {v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: claim}}}, "one"},
		"host port":     {v1.PodSpec{Containers: port}, "node"},
		"init's port":   {v1.PodSpec{InitContainers: port}, "node"},
	} {
		if got := scopeOf(&v1.Pod{Spec: each.spec}); got != each.scope {
			t.Errorf("%s: scope %q, expected %q", name, got, each.scope)
		}
	}
}

func TestOnlyAsksGetTags(t *testing.T) {
	pod := func(uid string) *v1.Pod {
		if uid == "unknown" {
			return nil
		}
		return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 80}}}}}}
	}
	request := &si.AllocationRequest{Allocations: []*si.Allocation{
		{AllocationKey: "ask"}, {AllocationKey: "running", NodeID: "n"}, {AllocationKey: "unknown"},
		{AllocationKey: "own", AllocationTags: map[string]string{scopeTag: "all"}},
	}}
	tagAsks(request, pod)
	for index, expected := range []string{"node", "", "", "all"} {
		if got := request.Allocations[index].AllocationTags[scopeTag]; got != expected {
			t.Errorf("%s: %q, expected %q", request.Allocations[index].AllocationKey, got, expected)
		}
	}
}

func TestReasonsFitIntoALine(t *testing.T) {
	err := errors.Join(errors.New("failed plugin: 'NodePorts'"), errors.New("no port is free"))
	if got := inALine(err); got != "failed plugin: 'NodePorts': no port is free" {
		t.Fatalf("%q", got)
	}
	if got := []rune(inALine(errors.New(strings.Repeat("ä", 5000)))); len(got) != maxReason {
		t.Fatalf("%d characters", len(got))
	}
	if got := guarded(func() string { panic("no such index") }); !strings.Contains(got, "no such index") {
		t.Fatalf("%q", got)
	}
}

func TestAccessThatCannotWorkIsRefused(t *testing.T) {
	for _, access := range []Access{
		{Token: "t"}, {TokenFile: "f"}, {Certificate: "c"}, {Key: "k"}, {CA: "/nowhere"}, {Certificate: "/nowhere", Key: "/nowhere"},
	} {
		if _, err := access.options(); err == nil {
			t.Errorf("%+v is accepted", access)
		}
	}
	for _, access := range []Access{{}, {TLS: true}, {TLS: true, Token: "t"}} {
		if _, err := access.options(); err != nil {
			t.Errorf("%+v: %v", access, err)
		}
	}
}
