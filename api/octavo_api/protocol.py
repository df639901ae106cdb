"""Agreements of gateway and replica beside the messages of ``octavo.v1.Replica``: version, beat, channel options.

Keepalive is gRPC's own ping, answered by its threads even while Python is busy. It finds a peer whose machine or
network is gone (the kernel reports a peer whose process died). A gateway need not wait for it: a replica that has sent
no ``Step`` for several beats counts as lost.

gRPC also pings on its own account, to measure the connection. It sends no keepalive while such a ping is unanswered.
``ping_timeout_ms``, a minute by default, is therefore always set beside ``keepalive_timeout_ms``.
"""

PROTOCOL_VERSION = 1

BEAT_INTERVAL_S = 0.25
"""A replica sends a ``Step`` at least this often."""

MAX_MESSAGE_BYTES = 64 * 2**20
"""A snapshot of eight million blocks, or a prompt of sixteen million tokens."""

ChannelOptions = list[tuple[str, int]]

_SIZES: ChannelOptions = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]


def client_options() -> ChannelOptions:
    """Options of a gateway's channel: a replica out of reach fails the stream after at most 3.5 seconds.

    Sooner would cut the streams of one whose node gives it no processor for a second; new requests avoid it by then.
    """
    return [
        *_SIZES,
        ("grpc.keepalive_time_ms", 500),
        ("grpc.keepalive_timeout_ms", 3000),
        ("grpc.http2.ping_timeout_ms", 3000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Each replica has a connection of its own, whatever else the process dials.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def server_options() -> ChannelOptions:
    """Options of a replica's server: a gateway out of reach is noticed within 5 seconds, frequent pings are welcome."""
    return [
        *_SIZES,
        # Two servers would share the port, and the requests, without a word.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 2000),
        ("grpc.keepalive_timeout_ms", 3000),
        ("grpc.http2.ping_timeout_ms", 3000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 250),
        ("grpc.http2.max_ping_strikes", 0),
    ]
