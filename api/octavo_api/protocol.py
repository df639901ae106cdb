"""Parts of the protocol between gateway and replica beside its messages: version, heartbeat and channel options.

Keepalive is gRPC's own ping. Its threads answer even while Python is busy. It finds a peer whose machine or network is
gone; the kernel reports a peer whose process died. A gateway does not wait for it, because a replica without a ``Step``
for several beats counts as lost.

gRPC also pings to measure the connection. It sends no keepalive while such a ping is unanswered.
``ping_timeout_ms``, a minute by default, is therefore always set beside ``keepalive_timeout_ms``.
"""

PROTOCOL_VERSION = 1

BEAT_INTERVAL_S = 0.25
"""Maximum seconds between two ``Step`` messages of a replica."""

MAX_MESSAGE_BYTES = 64 * 2**20
"""Maximum bytes of a message: a snapshot of eight million blocks, or a prompt of sixteen million tokens."""

ChannelOptions = list[tuple[str, int]]

_SIZES: ChannelOptions = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]


def client_options() -> ChannelOptions:
    """Return the options of a gateway's channel. An unreachable replica fails the stream after at most 3.5 seconds.

    A shorter limit would fail the streams of a replica that gets no processor for a second. New requests avoid such a
    replica before that.
    """
    return [
        *_SIZES,
        ("grpc.keepalive_time_ms", 500),
        ("grpc.keepalive_timeout_ms", 3000),
        ("grpc.http2.ping_timeout_ms", 3000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Each replica has its own connection, whatever other addresses the process connects to.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def server_options() -> ChannelOptions:
    """Return the options of a replica's server. It detects an unreachable gateway within 5 seconds."""
    return [
        *_SIZES,
        # Otherwise two servers would share the port and its requests without an error.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 2000),
        ("grpc.keepalive_timeout_ms", 3000),
        ("grpc.http2.ping_timeout_ms", 3000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 250),
        ("grpc.http2.max_ping_strikes", 0),
    ]
