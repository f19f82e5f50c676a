"""How the four processes are, and their settings ("knobs"): what `outrider status` and `outriderctl knob` ask, by the same messages."""
import errno
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import zmq

from . import _runtime
from ._connection import decode, encode, open_socket
from ._errors import Busy, InvalidRequest, OutriderError, Unavailable, error_of
from ._proto import admin_pb2, envelope_pb2

# As in admin/.
_LIST_S = 3.0
_STEP_S = 10.0
_RELEASE_S = 1.0
_BUSY_S = 35.0
_AWAY_S = 3.0
_AGAIN_S = 0.05
_ALIASES = {"cache": "expert-cache", "policy-controller": "policy"}

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Process:
    """One of the four processes."""

    name: str
    state: str
    """"loading", "ready", "degraded: ...", "idle: ..."; of one that does not answer "loading" (it does not listen yet), "down" (nobody
    listens), "no answer yet" (it may be starting) or "no answer"."""
    pid: int = 0
    """Who listens or will, whether it answers or not; 0: nobody, or it is not known."""
    answers: bool = False
    """False: nothing is known but name, pid and state."""
    generation: int = 0
    uptime_ns: int = 0
    rss_bytes: int = 0
    """Resident memory; 0: not known."""
    version: str = ""
    details: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Status:
    """How the service is."""

    processes: tuple[Process, ...]
    given_up: str | None = None
    """Why `outrider up` ended and will not start them again; None: it did not."""

    def __getitem__(self, name: str) -> Process:
        """The process of this name: "verifier", "drafter", "expert-cache" or "policy"."""
        return next(p for p in self.processes if p.name == _process_of(name))

    @property
    def ready(self) -> bool:
        """Whether every process is ready or idle."""
        return all(p.state.startswith(("ready", "idle")) for p in self.processes)


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of a process."""

    process: str
    name: str
    value: str
    started: str
    """What the process was started with."""
    default: str
    type: str
    unit: str
    range: str
    choices: tuple[str, ...]
    help: str
    scope: str
    """"global", "model" or "session"."""
    live: bool
    """Whether it may change while the process runs."""
    persisted: bool
    """Whether a stored value is there for the next start."""
    means: str
    """What a value that leaves it to the process, as "auto", is now; "": what the value says."""
    reverts_in_ns: int
    """0: it stays."""
    reverts_to: str

    @property
    def full_name(self) -> str:
        """For example "policy.k_max"."""
        return f"{self.process}.{self.name}"


@dataclass(frozen=True, slots=True)
class KnobChange:
    """What a change has done."""

    process: str
    name: str
    old: str
    new: str
    at_start: bool
    """The new value is in force at the next start only."""
    note: str


def _process_of(name: str) -> str:
    process = _ALIASES.get(name, name)
    if process not in (*_runtime.PROCESSES, _runtime.GATEWAY):
        raise InvalidRequest(errno.EINVAL, f"process {name!r:.64}: the processes are {', '.join((*_runtime.PROCESSES, _runtime.GATEWAY))}")
    return process


def status(runtime_dir: str | os.PathLike[str] | None = None, timeout: float = 1.0) -> Status:
    """Asks every process at once, and the gateway where one runs, within so many seconds. One that does not answer is "down",
    "loading", "no answer" or "no answer yet"; that is no error."""
    try:
        directory = _runtime.runtime_dir(runtime_dir)
    except Unavailable:  # no directory is no service, which is an answer too
        return Status(tuple(Process(name, "down") for name in _runtime.PROCESSES))
    processes = {}
    poller = zmq.Poller()
    with zmq.Context() as context:
        open_: dict[zmq.Socket[bytes], str] = {}
        for name in _runtime.processes(directory):
            path = f"{directory}/{name}.ctl"
            pid = _runtime.listener(path)
            if pid is None:
                loads = _runtime.holder(f"{directory}/{name}.lock")
                processes[name] = Process(name, "down") if loads is None else Process(name, "loading", loads)
                continue
            processes[name] = Process(name, "no answer yet" if _runtime.is_starting(path) else "no answer", pid)
            socket = open_socket(context, f"ipc://{path}")
            socket.setsockopt(zmq.LINGER, 0)
            socket.send(encode(envelope_pb2.Envelope(status_request=admin_pb2.StatusRequest()), 1), zmq.DONTWAIT)
            open_[socket] = name
            poller.register(socket, zmq.POLLIN)
        patience = _runtime.Patience(timeout)
        more = True
        while open_ and more:
            step = patience.step_s()
            more = step > 0
            for socket, _ in poller.poll(round(step * 1000)):
                envelope = decode(socket.recv_multipart(zmq.DONTWAIT))
                if envelope is not None and envelope.WhichOneof("body") == "status":
                    name = open_.pop(socket)
                    processes[name] = _answered(name, envelope.status)
                    poller.unregister(socket)
                    socket.close()
        for socket in open_:
            socket.close()
    found = _runtime.given_up(directory, 0)
    return Status(tuple(processes.values()), found[0] if found else None)


def _answered(name: str, s: admin_pb2.Status) -> Process:
    details = {key: value for key, _, value in (detail.partition("=") for detail in s.detail)}
    return Process(name, s.state, s.pid, True, s.generation, s.uptime_ns, s.rss_bytes, s.version, details)


def _call(context: "zmq.Context[zmq.Socket[bytes]]", directory: str, process: str, request: envelope_pb2.Envelope, expected: str,
          timeout: float) -> envelope_pb2.Envelope:
    """One request, one reply."""
    path = f"{directory}/{process}.ctl"
    if _runtime.listener(path) is None:
        raise Unavailable(errno.ECONNREFUSED, f"{process} is not running in {directory}")
    with open_socket(context, f"ipc://{path}") as socket:
        socket.setsockopt(zmq.LINGER, 0)
        number = secrets.randbelow((1 << 64) - 1) + 1
        socket.send(encode(request, number), zmq.DONTWAIT)
        patience = _runtime.Patience(timeout)
        more = True
        while more:
            step = patience.step_s()
            more = step > 0
            if not socket.poll(round(step * 1000)):
                continue
            envelope = decode(socket.recv_multipart(zmq.DONTWAIT))
            body = envelope.WhichOneof("body") if envelope is not None else None
            if envelope is None or (envelope.request_id != number and (envelope.request_id or body != "failure")):
                continue  # to an earlier call that was given up
            if body == "failure":
                # Configuration that is wrong is ENOEXEC to the processes.
                code = envelope.failure.code
                raise error_of(errno.EINVAL if code == errno.ENOEXEC else code, envelope.failure.message)
            if body != expected:
                raise OutriderError(errno.EPROTO, f"{process} answered with {body}, expected {expected}")
            return envelope
    raise Unavailable(errno.ETIMEDOUT, f"{process} has not answered in {timeout:.0f} s: its process is stopped or hangs")


def _call_patiently(context: "zmq.Context[zmq.Socket[bytes]]", directory: str, process: str, request: envelope_pb2.Envelope,
                    expected: str, timeout: float) -> envelope_pb2.Envelope:
    """The same, and waits a while for a process that is being started again while others are there."""
    end = time.monotonic() + _AWAY_S
    while True:
        try:
            return _call(context, directory, process, request, expected, timeout)
        except Unavailable as e:
            others = (p for p in _runtime.PROCESSES if p != process)
            if (e.code != errno.ECONNREFUSED or time.monotonic() >= end
                    or not any(_runtime.listener(f"{directory}/{p}.ctl") is not None for p in others)):
                raise
        time.sleep(_AGAIN_S)


class _Batch:
    """Changes of several processes: all or none."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", directory: str, parts: Mapping[str, admin_pb2.KnobSet]) -> None:
        self._context, self._directory, self._parts = context, directory, parts

    def make(self) -> dict[str, admin_pb2.KnobDone]:
        """What each process says."""
        if len(self._parts) == 1:
            return self._take(admin_pb2.KnobSet.NOW)
        number = secrets.randbelow((1 << 64) - 1) + 1
        for part in self._parts.values():
            part.reservation = number
        committed: dict[str, admin_pb2.KnobDone] = {}
        try:
            # Everybody has checked its part before anybody applies his, and applied it before anybody makes it last.
            self._take(admin_pb2.KnobSet.RESERVE)
            self._take(admin_pb2.KnobSet.APPLY)
            return self._take(admin_pb2.KnobSet.COMMIT, committed)
        except OutriderError as e:
            self._release(name for name in self._parts if name not in committed)
            if committed:
                raise type(e)(e.code, f"{e}; {', '.join(committed)} had already committed its changes") from e
            raise

    def _take(self, step: int, done: dict[str, admin_pb2.KnobDone] | None = None) -> dict[str, admin_pb2.KnobDone]:
        """One step with each. While another has the knobs of one reserved, nothing stays reserved in those before it."""
        done = {} if done is None else done
        end = time.monotonic() + _BUSY_S
        begins = step in (admin_pb2.KnobSet.NOW, admin_pb2.KnobSet.RESERVE)
        while len(done) < len(self._parts):
            process = next(name for name in self._parts if name not in done)
            self._parts[process].step = step  # type: ignore[assignment]
            reply = _call_patiently(self._context, self._directory, process, envelope_pb2.Envelope(knob_set=self._parts[process]),
                                    "knob_done", _STEP_S).knob_done
            if not reply.busy:
                done[process] = reply
                continue
            if not begins or time.monotonic() >= end:
                raise Busy(errno.EBUSY, reply.message)
            self._release(done)
            done.clear()
            time.sleep(_AGAIN_S)
        return done

    def _release(self, processes: Iterable[str]) -> None:
        for process in list(processes):
            release = admin_pb2.KnobSet(step=admin_pb2.KnobSet.RELEASE, reservation=self._parts[process].reservation)
            try:
                _call(self._context, self._directory, process, envelope_pb2.Envelope(knob_set=release), "knob_done", _RELEASE_S)
            except OutriderError:
                pass  # it takes it back by itself, a little later


class Admin:
    """What is asked of the processes themselves."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def status(self, timeout: float = 1.0) -> Status:
        """How every process is, within so many seconds. One that does not answer is no error."""
        return status(self._directory, timeout)

    def knobs(self, process: str | None = None, *, session: int = 0) -> list[Knob]:
        """The settings of a process, or of all that run, with their values, ranges and what they are for; session: the values of this
        session, where they are a session's."""
        with zmq.Context() as context:
            return [knob for name in ([_process_of(process)] if process else _runtime.processes(self._directory))
                    for knob in self._list(context, name, session)]

    def knob(self, name: str, *, session: int = 0) -> Knob:
        """One setting by its name: "policy.k_max", or "k_max" where only one process has it."""
        with zmq.Context() as context:
            return self._find(context, name, session)

    def set_knobs(self, values: Mapping[str, Value], *, seconds: float = 0, persist: bool = False, at_start: bool = False,
                  session: int = 0, expected: Mapping[str, Value] | None = None) -> list[KnobChange]:
        """Changes settings while the service runs, all or none, also over several processes.

        seconds: they go back by themselves after this time; persist: they last over the next start too; at_start: they change with
        the next start only; session: of this session alone; expected: a change is made only if the setting has this value now.
        Raises InvalidRequest, with the range, for a value that is not allowed."""
        return self._change(values, seconds, persist, at_start, session, expected or {}, False)

    def reset_knobs(self, *names: str) -> list[KnobChange]:
        """Sets them back to what their processes were started with."""
        return self._change({name: "" for name in names}, 0, False, False, 0, {}, True)

    def _list(self, context: "zmq.Context[zmq.Socket[bytes]]", process: str, session: int) -> list[Knob]:
        request = envelope_pb2.Envelope(knob_list=admin_pb2.KnobList(session_uid=session))
        reply = _call_patiently(context, self._directory, process, request, "knobs", _LIST_S).knobs
        return [Knob(process, k.name, k.value, k.started, k.fallback, k.type, k.unit, k.range, tuple(k.choices), k.help, k.scope, k.live,
                     k.persisted, k.means, k.reverts_in_ns, k.reverts_to) for k in reply.knobs]

    def _find(self, context: "zmq.Context[zmq.Socket[bytes]]", name: str, session: int) -> Knob:
        process, dot, rest = name.partition(".")
        named = _ALIASES.get(process, process)
        known = (*_runtime.PROCESSES, _runtime.GATEWAY)
        where = [named] if dot and named in known else list(_runtime.processes(self._directory))
        short = rest if len(where) == 1 else name
        found = [knob for p in where for knob in self._list(context, p, session) if knob.name == short]
        if not found:
            raise InvalidRequest(errno.EINVAL, f"unknown knob {name!r:.64}; Client.knobs() lists them")
        if len(found) > 1:
            raise InvalidRequest(errno.EINVAL, f"{name!r:.64} is a knob of several processes: {', '.join(k.full_name for k in found)}")
        return found[0]

    def _change(self, values: Mapping[str, Value], seconds: float, persist: bool, at_start: bool, session: int,
                expected: Mapping[str, Value], reset: bool) -> list[KnobChange]:
        if not values:
            raise InvalidRequest(errno.EINVAL, "no knob was named")
        if not 0 <= seconds < 1e9:
            raise InvalidRequest(errno.EINVAL, f"seconds is {seconds!r}: allowed are 0 to 1e9")
        strange = sorted(set(expected) - set(values))
        if strange:
            raise InvalidRequest(errno.EINVAL, f"a value of {strange[0]!r} is expected, which is not changed")
        parts: dict[str, admin_pb2.KnobSet] = {}
        with zmq.Context() as context:
            for name, value in values.items():
                knob = self._find(context, name, 0)
                part = parts.setdefault(knob.process, admin_pb2.KnobSet(
                    reset=reset, for_ns=round(seconds * 1e9), persist=persist, at_start=at_start, session_uid=session,
                    program="python"))
                part.changes.add(name=knob.name, value=_text(value), has_expected=name in expected,
                                 expected=_text(expected.get(name, "")))
            done = _Batch(context, self._directory, parts).make()
        return [KnobChange(process, r.name, r.old_value, r.new_value, r.at_start, r.note)
                for process, reply in done.items() for r in reply.results]


def _text(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
