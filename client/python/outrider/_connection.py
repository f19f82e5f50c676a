"""The connection to the verifier and the sessions that use it. Nothing here waits: the clients do, each in its own way."""
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq
from google.protobuf.message import DecodeError
from zmq.utils.monitor import parse_monitor_message

from . import _runtime
from ._errors import InvalidRequest, OutriderError
from ._proto import client_pb2, envelope_pb2
from ._request import MESSAGE_BYTES_MAX, Options, generate_of, too_large
from ._session import Session

BUS_VERSION = 1
WINDOW_MAX = 65536
WAIT_S_MAX = 86400.0
# How often silence is looked at while somebody waits.
LOOK_S = 0.05
# How long the end of a stream that was not read to its end is waited for.
CANCEL_WAIT_S = 0.2

# As in shared/ipc/bus.c.
_QUEUE_MESSAGES = 1000
_LINGER_MS = 200
_MESSAGE_CUT = 32 << 20
# A gap between two looks counts as at most this much silence: a caller who was away did not wait.
_STEP_S_MAX = 1.0

_EVENTS = zmq.Event.CONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


def open_socket(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> "zmq.Socket[bytes]":
    """A DEALER that connects, and connects again, to a server of the service."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_CUT)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, _QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, _QUEUE_MESSAGES)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.connect(endpoint)
    return socket


def decode(frames: list[bytes]) -> envelope_pb2.Envelope | None:
    """The message; None for what is none, or of another version, which is dropped."""
    if len(frames) != 1 or len(frames[0]) > MESSAGE_BYTES_MAX:
        return None
    try:
        envelope = envelope_pb2.Envelope.FromString(frames[0])
    except DecodeError:
        return None
    return envelope if envelope.version == BUS_VERSION else None


def encode(envelope: envelope_pb2.Envelope, number: int) -> bytes:
    """The bytes of a message, which gets this number."""
    envelope.version = BUS_VERSION
    envelope.request_id = number
    data: bytes = envelope.SerializeToString()
    return data


def receive(socket: "zmq.Socket[bytes]") -> Iterator[envelope_pb2.Envelope]:
    """All messages that lie in the socket."""
    while True:
        try:
            frames = socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        envelope = decode(frames)
        if envelope is not None:
            yield envelope


def _seconds(name: str, value: float) -> float:
    if not 0 <= value <= WAIT_S_MAX:
        raise InvalidRequest(errno.EINVAL, f"{name} is {value!r}: allowed are 0 to {WAIT_S_MAX:.0f} seconds")
    return float(value)


class Connection:
    """A DEALER to the verifier, with its monitor. It is what _session.Link says."""

    def __init__(self, runtime_dir: str | os.PathLike[str] | None, window: int, first_wait: float, away_wait: float) -> None:
        if not 1 <= window <= WINDOW_MAX:
            raise InvalidRequest(errno.EINVAL, f"window is {window!r}: allowed are 1 to {WINDOW_MAX} tokens")
        self.first_s, self.away_s = _seconds("first_wait", first_wait), _seconds("away_wait", away_wait)
        self.directory = _runtime.runtime_dir(runtime_dir)
        self.window = int(window)
        self.owner = os.getpid()
        self.connected = False  # by the last event of the monitor
        self.reached = False  # somebody listens, though perhaps he does nothing else
        self.answered = False  # at least once
        self.silence_s = self.waited_s = 0.0
        self.sessions: dict[int, Session] = {}
        self.on_event: Callable[[Session], None] = lambda session: None
        self.closed = False
        self._since = time.time()
        self._looked = self._ticked = time.monotonic()
        self._requests = 0
        self._lock = threading.Lock()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = open_socket(self.context, f"ipc://{self.directory}/client")
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(_EVENTS)

    @contextmanager
    def used(self) -> Iterator[None]:
        """For every use of the sockets: they belong to the process that opened them, and to one thread at a time."""
        if self.closed:
            raise OutriderError(errno.EBADF, "the client is closed")
        if os.getpid() != self.owner:
            raise OutriderError(errno.EPERM, f"the client belongs to process {self.owner}, which opened it: after fork() a process "
                                "opens its own")
        if not self._lock.acquire(blocking=False):
            raise OutriderError(errno.EBUSY, "another thread is using this client: every thread opens its own")
        try:
            yield
        finally:
            self._lock.release()

    def close(self) -> None:
        """Closes the sockets; the last messages get 200 ms to leave. In the child of a fork nothing is touched."""
        if self.closed or os.getpid() != self.owner:
            return
        self.closed = True
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()
        self.context.term()

    # Sessions.

    def begin(self, prompt: str | None, options: Options) -> Session:
        """Starts a session with a request."""
        generate = generate_of(prompt, options)
        uid = generate.session_uid
        if uid in self.sessions:
            raise InvalidRequest(errno.EEXIST, f"this client has a stream of session {uid} already")
        generate.session_uid = uid or secrets.randbelow((1 << 64) - 1) + 1
        self.look()  # time before now is not its silence
        return self._add(Session(self, generate.session_uid, 0, self.window, generate))

    def resume(self, uid: int, have: int) -> Session:
        """The session of somebody else, from token `have` on."""
        if not 1 <= uid < 1 << 64:
            raise InvalidRequest(errno.EINVAL, f"session {uid}: allowed are 1 to 2^64 - 1")
        if not 0 <= have < 1 << 32:
            raise InvalidRequest(errno.EINVAL, f"have is {have}: allowed are 0 to {(1 << 32) - 1}")
        if uid in self.sessions:
            raise InvalidRequest(errno.EINVAL, f"session {uid} has a stream of this client already")
        self.look()
        return self._add(Session(self, uid, have, self.window, None))

    def _add(self, session: Session) -> Session:
        self.sessions[session.uid] = session
        try:
            session.start()
        except OutriderError:
            self.remove(session)
            raise
        return session

    def remove(self, session: Session) -> None:
        """Nothing more is wanted of it."""
        self.sessions.pop(session.uid, None)

    # What a session needs.

    def send(self, envelope: envelope_pb2.Envelope) -> int:
        """Queues a message and returns its number; 0: the queue is full."""
        data = encode(envelope, self._requests + 1)
        if len(data) > MESSAGE_BYTES_MAX:
            raise too_large(len(data))
        try:
            self.socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            return 0
        self._requests += 1
        return self._requests

    def is_there(self) -> bool:
        """Whether there is a verifier, whatever it does."""
        # The monitor may have come too late to see the connection that it is about.
        return self.reached or _runtime.listener(f"{self.directory}/client") is not None

    def given_up(self) -> tuple[str, bool] | None:
        """Why the service will not come back, if so."""
        return _runtime.given_up(self.directory, self._since)

    # Messages and time.

    def look(self, waited_s: float = 0.0) -> None:
        """Takes in whatever has arrived, and gives the sessions the time that passed; waited_s: how long the caller meant to wait
        since the last look."""
        now = time.monotonic()
        step = now - self._looked
        self._looked = now
        self.waited_s += step
        self.silence_s += min(step, _STEP_S_MAX)
        # Before silence is judged: what lies in the socket is not silence.
        still = _runtime.stood_still(waited_s, step) if waited_s else False
        if still:
            for session in self.sessions.values():
                session.count_anew()
        for envelope in receive(self.socket):
            self._dispatch(envelope)
        self._watch()
        if now - self._ticked >= LOOK_S:
            self._ticked = now
            for session in list(self.sessions.values()):
                session.tick()
                if session.has_event():
                    self.on_event(session)

    def has_messages(self) -> bool:
        """Whether something lies in the sockets that ZeroMQ's descriptors do not announce any more."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN or int(self.monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _dispatch(self, envelope: envelope_pb2.Envelope) -> None:
        self.answered = True
        session = self._find(envelope)
        if session is not None:
            session.handle(envelope)
            if session.has_event():
                self.on_event(session)

    def _find(self, envelope: envelope_pb2.Envelope) -> Session | None:
        """The session that a message is about; a refusal of what the service could not read names the request alone."""
        body = envelope.WhichOneof("body")
        if body not in ("accepted", "tokens", "done", "failure"):
            return None
        about: client_pb2.Accepted | client_pb2.Tokens | client_pb2.Done | envelope_pb2.Failure = getattr(envelope, body)
        if about.session_uid or body != "failure":
            return self.sessions.get(about.session_uid)
        return next((s for s in self.sessions.values() if s.request_id == envelope.request_id), None)

    def _watch(self) -> None:
        while True:
            try:
                frames = self.monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            event = parse_monitor_message(frames)["event"]
            was, self.connected = self.connected, event == zmq.Event.HANDSHAKE_SUCCEEDED
            self.reached = self.connected or event == zmq.Event.CONNECTED
            # What was sent before the break may be lost: every session says again where it stands.
            if self.connected and not was:
                for session in list(self.sessions.values()):
                    session.connected()
