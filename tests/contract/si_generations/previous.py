"""The previous generation: the previous generation. What it shares with the current one is taken from there."""

from __future__ import annotations

from contract.si_generations.build import Generation
from contract.si_generations.current import SHARED_DETAILS, SHARED_ENUMS, SHARED_REQUESTS

PREVIOUS = Generation(
    name="previous",
    messages={
        **SHARED_REQUESTS,
        "AllocationRequest": {
            1: ("asks", "[AllocationAsk]"),
            2: ("releases", "AllocationReleasesRequest"),
            3: ("rmID", "string"),
            4: ("allocations", "[Allocation]"),
        },
        "AllocationResponse": {
            1: ("new", "[Allocation]"),
            2: ("released", "[AllocationRelease]"),
            3: ("releasedAsks", "[AllocationAskRelease]"),
            4: ("rejected", "[RejectedAllocationAsk]"),
            5: ("rejectedAllocations", "[RejectedAllocation]"),
        },
        "AllocationAsk": {
            1: ("allocationKey", "string"),
            2: ("applicationID", "string"),
            3: ("partitionName", "string"),
            4: ("resourceAsk", "Resource"),
            5: ("maxAllocations", "int32"),
            6: ("priority", "int32"),
            7: ("executionTimeoutMilliSeconds", "int64"),
            8: ("tags", "{string}"),
            9: ("taskGroupName", "string"),
            10: ("placeholder", "bool"),
            11: ("Originator", "bool"),
            12: ("preemptionPolicy", "PreemptionPolicy"),
        },
        "Allocation": {
            1: ("allocationKey", "string"),
            2: ("allocationTags", "{string}"),
            3: ("UUID", "string"),
            5: ("resourcePerAlloc", "Resource"),
            6: ("priority", "int32"),
            8: ("nodeID", "string"),
            9: ("applicationID", "string"),
            10: ("partitionName", "string"),
            11: ("taskGroupName", "string"),
            12: ("placeholder", "bool"),
        },
        "AllocationReleasesRequest": {
            1: ("allocationsToRelease", "[AllocationRelease]"),
            2: ("allocationAsksToRelease", "[AllocationAskRelease]"),
        },
        "AllocationRelease": {
            1: ("partitionName", "string"),
            2: ("applicationID", "string"),
            3: ("UUID", "string"),
            4: ("terminationType", "TerminationType"),
            5: ("message", "string"),
            6: ("allocationKey", "string"),
        },
        "AllocationAskRelease": {
            1: ("partitionName", "string"),
            2: ("applicationID", "string"),
            3: ("allocationKey", "string"),
            4: ("terminationType", "TerminationType"),
            5: ("message", "string"),
        },
        "NodeInfo": {
            1: ("nodeID", "string"),
            2: ("action", "NodeInfo.ActionFromRM"),
            3: ("attributes", "{string}"),
            4: ("schedulableResource", "Resource"),
            5: ("occupiedResource", "Resource"),
            6: ("existingAllocations", "[Allocation]"),
        },
        "RejectedAllocationAsk": {
            1: ("allocationKey", "string"),
            2: ("applicationID", "string"),
            3: ("reason", "string"),
        },
        "UpdateContainerSchedulingStateRequest": {
            1: ("applicartionID", "string"),  # as that generation spells it
            2: ("allocationKey", "string"),
            3: ("state", "UpdateContainerSchedulingStateRequest.SchedulingState"),
            4: ("reason", "string"),
        },
    },
    enums={
        **SHARED_ENUMS,
        "EventRecord.Type": {0: "UNKNOWN_EVENTRECORD_TYPE", 1: "REQUEST", 2: "APP", 3: "NODE", 4: "QUEUE"},
        "EventRecord.ChangeDetail": {**SHARED_DETAILS, 205: "APP_STARTING", 301: "NODE_READY"},
    },
    reserved={
        "Allocation": {7: "queueName"},
        "UpdateConfigurationRequest": {1: "configs"},
        "EventRecord": {3: "groupID", 4: "reason"},
    },
)
