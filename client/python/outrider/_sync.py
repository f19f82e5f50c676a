"""The client for programs that wait."""
import math
import os
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, Unpack

import zmq

from . import _admin
from ._connection import CANCEL_WAIT_S, LOOK_S, Connection
from ._events import Answer, Event
from ._request import Options
from ._session import Session
from ._stream import BaseStream


class Stream(BaseStream):
    """One answer under way: an iterator of events. A context manager: who leaves before the last event cancels the rest."""

    def __init__(self, client: "Client", session: Session) -> None:
        super().__init__(client._connection, session)
        self._client = client

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event. It is waited for at most so many seconds; with None, for as long as the client waits for the service. None
        as the result: nothing came in time, or the last event was given before. Raises OutriderError for what the service refuses."""
        if self._over or not self._client._wait(self._session.has_event, timeout):
            return None
        return self._take()

    def _leave(self) -> None:
        super()._leave()
        self._client._forget(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def answer(self) -> Answer:
        """Reads on to the end. The answer has all events of this stream, those that were taken before too."""
        for _ in self:
            pass
        return self._whole()

    def close(self) -> None:
        """Cancels what has not ended. Nothing more comes from this stream."""
        if self._over:
            return
        connection, session = self._connection, self._session
        if self._needs_cancel():
            self.cancel()
            # Waits for the answer: closing right behind the message could lose it.
            self._client._wait(lambda: session.ended or not connection.connected, CANCEL_WAIT_S)
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Client(_admin.Admin):
    """A connection to the service. It may have many streams at once. It is used by one thread at a time, and by the process that
    opened it; other threads and processes open their own. A context manager.

    runtime_dir: where the service's sockets are; None: OUTRIDER_RUNTIME_DIR, else the system's default (outrider(3)).
    window: how many tokens the service may send ahead of those that were taken, 1 to 65536.
    first_wait: seconds to wait for a service that has not answered this client yet.
    away_wait: the same for one that went away or fell silent; a stream goes on by itself when it is back in time.

    Opening does not wait for the service: the first request does."""

    def __init__(self, runtime_dir: str | os.PathLike[str] | None = None, *, window: int = 512, first_wait: float = 5.0,
                 away_wait: float = 60.0) -> None:
        self._connection = Connection(runtime_dir, window, first_wait, away_wait)
        self._connection.on_event = self._add_ready
        super().__init__(self._connection.directory)
        self._streams: dict[int, Stream] = {}
        self._ready: deque[int] = deque()  # uids of streams that have events, in turns
        self._in_line: set[int] = set()
        self._poller = zmq.Poller()
        self._poller.register(self._connection.socket, zmq.POLLIN)
        self._poller.register(self._connection.monitor, zmq.POLLIN)

    def generate(self, prompt: str | None = None, **options: Unpack[Options]) -> Answer:
        """A whole answer. The options are those of outrider.Options."""
        with self.stream(prompt, **options) as stream:
            return stream.answer()

    def stream(self, prompt: str | None = None, **options: Unpack[Options]) -> Stream:
        """Starts an answer, and gives its events as they come. The options are those of outrider.Options."""
        with self._connection.used():
            return self._open(self._connection.begin(prompt, options))

    def resume(self, uid: int, have: int = 0) -> Stream:
        """The session of another client or process, or of one that is gone: tokens come from index `have` on. The first event raises
        UnknownSession when the service does not know it (any more)."""
        with self._connection.used():
            return self._open(self._connection.resume(uid, have))

    def next_event(self, timeout: float | None = None) -> tuple[Stream, Event] | None:
        """The next event of any stream, and whose it is; streams that have events take turns. None: nothing came in time, or no
        stream is open. What one stream raises is raised once, and that stream is over."""
        while self._wait(lambda: bool(self._ready) or not self._streams, timeout) and self._ready:
            uid = self._ready.popleft()
            self._in_line.discard(uid)
            stream = self._streams.get(uid)
            if stream is None or not stream._session.has_event():
                continue  # next() has taken it all
            event = stream._take()
            if stream._session.has_event():
                self._add_ready(stream._session)
            return stream, event
        return None

    def close(self) -> None:
        """Cancels what has not ended, and closes the connection."""
        for stream in list(self._streams.values()):
            stream.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self, session: Session) -> Stream:
        stream = self._streams[session.uid] = Stream(self, session)
        return stream

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream.uid, None)
        self._connection.remove(stream._session)

    def _add_ready(self, session: Session) -> None:
        if session.uid not in self._in_line:
            self._in_line.add(session.uid)
            self._ready.append(session.uid)

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until the condition holds; False: the time is over."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        with self._connection.used():
            if not condition():
                self._connection.look()
            while not condition():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                step = min(left, LOOK_S)
                self._poller.poll(math.ceil(step * 1000))
                self._connection.look(step)
            return True


__all__ = ["Client", "Stream"]
