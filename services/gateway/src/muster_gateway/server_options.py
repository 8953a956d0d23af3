"""The options of the gRPC server, and the bounds of its connections, from the settings."""

from __future__ import annotations

from muster_gateway.connections import Bounds
from muster_gateway.settings import GatewaySettings

_STREAM_WINDOW_BYTES = 1 << 17  # what an RM may send before the gateway reads it
# gRPC treats a shorter time between a client's pings as an attack (its default is five minutes).
_MIN_PING_INTERVAL_MS = 10_000


def bounds_of(settings: GatewaySettings) -> Bounds:
    """Returns the bounds of connections."""
    limits = settings.connections
    return Bounds(limits.of_all(), limits.of_host(), limits.max_quiet_bytes, settings.max_message_bytes)


def server_options(settings: GatewaySettings) -> list[tuple[str, int]]:
    """Returns the options of the gRPC server."""
    connections, metadata_bytes = settings.connections.of_all(), settings.connections.max_metadata_bytes
    return [
        # Idle connections over the limit end a moment later (connections.py). Of those that come meanwhile gRPC closes
        # what is over this one, at once.
        ("grpc.max_allowed_incoming_connections", connections + max(16, connections // 4)),
        # Between the first and the second gRPC would refuse by chance.
        ("grpc.max_metadata_size", metadata_bytes),
        ("grpc.absolute_max_metadata_size", metadata_bytes),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # the log's record limit bounds the messages
        ("grpc.so_reuseport", 0),  # two gateways on one port would share its connections by chance
        ("grpc.keepalive_time_ms", round(settings.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A stream's window stays as it is. Otherwise gRPC enlarges it to what the network can carry, megabytes for each
        # stream: an RM's releases would stand behind all asks in there, and its memory is the gateway's.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _STREAM_WINDOW_BYTES),
        ("grpc.max_concurrent_streams", settings.calls.max_per_connection),
        ("grpc.server_handshake_timeout_ms", round(settings.calls.handshake_timeout_s * 1000)),
        ("grpc.max_connection_idle_ms", round(settings.calls.connection_idle_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    ]
