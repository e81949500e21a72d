"""What a configuration says of how much callers, messages and streams may cost."""

from typing import Literal, Self

from pydantic import model_validator

from gateway.settings.model import Model
from gateway.settings.values import (
    Count,
    Depth,
    PositiveSize,
    RateText,
    StateSize,
    Wait,
)


class Limits(Model):
    """What one caller or one message may cost."""

    message: PositiveSize = 32 * 2**20
    """The largest message, either way."""
    header: PositiveSize = 64 * 2**10
    """The largest head of a request."""
    depth: Depth = 200
    """How deep JSON may nest."""
    streams_per_caller: Count = 1000
    """Listen streams open at once per caller with a token."""
    anonymous_streams: Count = 10_000
    """The same for all callers without a token together, who cannot be told apart."""
    stalled_listener: Wait = 10.0
    """How long a listener may read nothing before its stream is cut."""
    page_size: Count = 1000
    """Elements in one page of a merged list."""
    list_pages: Count = 1000
    """Pages read of one upstream's list before it counts as endless."""
    list_items: Count = 10_000
    """Elements read of one upstream's list before it counts as endless; those beyond are left out."""
    list_bytes: PositiveSize = 64 * 2**20
    """The largest list of one upstream, all pages together; a larger one counts as failed."""
    instructions: Count = 16_384
    """Characters of all upstreams' instructions together; longer ones are cut."""
    input_wait: Wait = 600.0
    """How long a client may take to bring what an upstream asked its user for."""
    anonymous_input_wait: Wait = 300.0
    """The same for callers without a token, whose answer anybody could bring."""
    request_state: StateSize = 256 * 2**10
    """The largest state that an upstream which asks may leave with a client; at most 512KiB."""
    questions: Count = 1000
    """Calls at once that wait for a client to answer what a server of an older protocol asked meanwhile."""
    questions_per_caller: Count = 100
    """The most of them that one caller may have; those without a token count as one, except that each session
    of an older client without one counts by itself."""
    rounds: Count = 10
    """How often one call of an older client may be asked for input."""
    sessions: Count = 10_000
    """Sessions of clients of older protocols in which something goes on at once; quiet ones beyond cost
    nothing."""
    sessions_per_caller: Count = 5000
    """The most of them that one caller may have, or all without a token together."""
    session_idle: Wait = 1800.0
    """How long such a session may be idle before it ends."""
    session_lifetime: Wait = 86400.0
    """The longest it may last."""
    keep_alive: Wait = 15.0
    """A comment is sent on a stream that was silent this long."""
    request_head: Wait = 10.0
    """The longest the head of a request may take to arrive, and a connection's first one to begin."""
    request_body: Wait = 30.0
    """The longest a request's body may take to arrive."""
    connections: Count = 20_000
    """Connections of clients at once; the next takes the place of an idle one, or is closed as it opens."""
    requests: Count = 2000
    """Requests answered at once, open streams apart; more are told to come back (503)."""
    in_flight: PositiveSize = 512 * 2**20
    """Bytes of requests and answers that are held at once; beyond it requests are told to come back (503)."""
    calls_per_caller: Count = 200
    """Requests of one caller at once, open streams apart; more are told to come back (429)."""
    anonymous_calls: Count = 1000
    """The same for all callers without a credential together."""
    rate_per_caller: RateText | None = None
    """The most requests of one caller, such as 100/s; more are told to come back (429)."""
    anonymous_rate: RateText | None = None
    """The same for each address that callers without a credential that counts come from."""
    verifications_per_address: Count = 32
    """New credentials from one address that wait for an issuer at once; more are told to come back (429)."""
    rates_in: Literal["memory", "redis"] = "memory"
    """Where rates are counted: by each process, or in `cache.redis` for all replicas together."""


class Subscriptions(Model):
    """How changes reach the clients that listen for them."""

    acknowledge: Wait = 2.0
    """How long a listen waits to hear which of its resources it will be told of; the rest is left out."""
    subresources: Literal["exact", "parent"] = "exact"
    """What is told of an update below a resource that was asked for: the very URI, or the one asked for."""
    gather: Wait = 0.5
    """A list that changes again so soon is forgotten, and the change told, once at the end of this time."""
    debounce: Wait = 0.1
    """How long new wishes are gathered before an upstream's stream is replaced by one that serves them."""
    retry: Wait = 1.0
    """The first pause before an upstream's stream is opened anew; it doubles each time."""
    longest_retry: Wait = 60.0
    """The longest such pause."""
    stable: Wait = 30.0
    """A stream that lasted this long counts as good: the pauses start from the first again."""
    uris_per_stream: Count = 1000
    """Resources, and tasks, that one listen may ask for; the rest is left out of its acknowledgement."""
    pending: PositiveSize = 2**20
    """Bytes of tasks' and extensions' notices that may wait for one listener: more of an extension are
    dropped, more of tasks end its stream."""
    uri_bytes: PositiveSize = 256 * 2**10
    """The most that the URIs and task ids of one listen may add up to; more are refused."""
    uris_per_upstream: Count = 10_000
    """Resources, and tasks, that one upstream is asked for on behalf of all its clients, or of one caller
    whose credential it sees; the rest is left out of acknowledgements."""
    upstream_uri_bytes: PositiveSize = 2**20
    """The most that those may add up to."""
    lease: Wait = 5.0
    """With `cache.redis`: how long the replica that holds a stream may be silent before another does."""

    @model_validator(mode="after")
    def _pauses_grow(self) -> Self:
        if self.longest_retry < self.retry:
            raise ValueError(
                "longest_retry is the longest pause, so it cannot be shorter than retry, the first"
            )
        return self
