"""Several gateways behind one address, without a load balancer: gRPC's own client spreads the streams over them.

Start Muster with two gateways (docs/scaling.md), then:

    python examples/python/balanced.py ipv4:127.0.0.1:9090,127.0.0.1:9091

A name with an address for each gateway works in the same way: dns:///gateway:9090. Any gateway serves any stream. If a
gateway goes, its streams end with UNAVAILABLE. Open them again with the metadata muster-resume-after, the highest
responseSequence that you have processed: nothing is missed, and nothing comes twice. A channel without a policy
("pick_first") has all streams at one gateway, and goes to the next one when it is gone.
"""

import json
import sys

import grpc
from muster_proto.si.v1 import si_pb2 as si
from muster_proto.si.v1 import si_pb2_grpc

RM = "python-balanced"
STREAMS = 6
TIMEOUT_S = 30.0
ROUND_ROBIN = ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]}))


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "ipv4:127.0.0.1:9090"
    with grpc.insecure_channel(address, [ROUND_ROBIN]) as channel:
        grpc.channel_ready_future(channel).result(TIMEOUT_S)
        scheduler = si_pb2_grpc.SchedulerStub(channel)
        scheduler.RegisterResourceManager(si.RegisterResourceManagerRequest(rmID=RM, version="1"), timeout=TIMEOUT_S)
        for number in range(1, STREAMS + 1):
            # Each stream goes to the next gateway. It takes the place of the one before, wherever that is.
            node = si.NodeInfo(nodeID=f"node-{number}", action=si.NodeInfo.CREATE)
            call = scheduler.UpdateNode(
                iter([si.NodeRequest(rmID=RM, nodes=[node])]), timeout=TIMEOUT_S, metadata=(("muster-rm-id", RM),)
            )
            print(f"{next(call).accepted[0].nodeID} accepted", flush=True)
            call.cancel()
        leave = scheduler.UpdateNode(
            iter(()), timeout=TIMEOUT_S, metadata=(("muster-rm-id", RM), ("muster-shutdown", "true"))
        )
        for _ in leave:
            pass


if __name__ == "__main__":
    main()
