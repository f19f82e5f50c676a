"""The client for asyncio."""
import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self, Unpack

from . import _admin
from ._connection import CANCEL_WAIT_S, LOOK_S, Connection
from ._events import Answer, Event
from ._request import Options
from ._session import Session
from ._stream import BaseStream


class AsyncStream(BaseStream):
    """One answer under way: an asynchronous iterator of events. An asynchronous context manager: who leaves before the last event
    cancels the rest. One task reads a stream."""

    def __init__(self, client: "AsyncClient", session: Session) -> None:
        super().__init__(client._connection, session)
        self._client = client
        self._news = asyncio.Event()

    async def next(self) -> Event | None:
        """The next event; None after the last. Raises OutriderError for what the service refuses. To wait a limited time, use
        asyncio.timeout(): nothing is lost by it."""
        while not self._over and not self._session.has_event():
            self._client._check()
            self._news.clear()
            await self._news.wait()
        if self._over:
            return None
        return self._take()

    def _looked(self) -> None:
        self._client._look_soon()

    def _leave(self) -> None:
        super()._leave()
        self._news.set()
        self._client._forget(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def answer(self) -> Answer:
        """Reads on to the end. The answer has all events of this stream, those that were taken before too."""
        async for _ in self:
            pass
        return self._whole()

    async def close(self) -> None:
        """Cancels what has not ended. Nothing more comes from this stream."""
        if self._over:
            return
        connection, session = self._connection, self._session
        if self._needs_cancel():
            self.cancel()
            try:
                # Waits for the answer: closing right behind the message could lose it.
                async with asyncio.timeout(CANCEL_WAIT_S):
                    while not session.ended and connection.connected:
                        self._news.clear()
                        await self._news.wait()
            except TimeoutError:
                pass
            finally:
                self._leave()
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class AsyncClient:
    """As Client, for one event loop: the one that runs when its first stream is started. It may have many streams at once, each read
    by a task of its own. An asynchronous context manager. The parameters are those of Client."""

    def __init__(self, runtime_dir: str | os.PathLike[str] | None = None, *, window: int = 512, first_wait: float = 5.0,
                 away_wait: float = 60.0) -> None:
        self._connection = Connection(runtime_dir, window, first_wait, away_wait)
        self._connection.on_event = self._tell
        self._admin = _admin.Admin(self._connection.directory)
        self._streams: dict[int, AsyncStream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    async def generate(self, prompt: str | None = None, **options: Unpack[Options]) -> Answer:
        """A whole answer. The options are those of outrider.Options. A task that is cancelled cancels the request."""
        async with self.stream(prompt, **options) as stream:
            return await stream.answer()

    def stream(self, prompt: str | None = None, **options: Unpack[Options]) -> AsyncStream:
        """Starts an answer, and gives its events as they come. The options are those of outrider.Options."""
        self._begin()
        with self._connection.used():
            return self._open(self._connection.begin(prompt, options))

    def resume(self, uid: int, have: int = 0) -> AsyncStream:
        """The session of another client or process, or of one that is gone: tokens come from index `have` on. The first event raises
        UnknownSession when the service does not know it (any more)."""
        self._begin()
        with self._connection.used():
            return self._open(self._connection.resume(uid, have))

    async def status(self, timeout: float = 1.0) -> _admin.Status:
        """As Client.status()."""
        return await asyncio.to_thread(self._admin.status, timeout)

    async def knobs(self, process: str | None = None, *, session: int = 0) -> list[_admin.Knob]:
        """As Client.knobs()."""
        return await asyncio.to_thread(self._admin.knobs, process, session=session)

    async def knob(self, name: str, *, session: int = 0) -> _admin.Knob:
        """As Client.knob()."""
        return await asyncio.to_thread(self._admin.knob, name, session=session)

    async def set_knobs(self, values: Mapping[str, _admin.Value], *, seconds: float = 0, persist: bool = False, at_start: bool = False,
                        session: int = 0, expected: Mapping[str, _admin.Value] | None = None) -> list[_admin.KnobChange]:
        """As Client.set_knobs()."""
        return await asyncio.to_thread(self._admin.set_knobs, values, seconds=seconds, persist=persist, at_start=at_start,
                                       session=session, expected=expected)

    async def reset_knobs(self, *names: str) -> list[_admin.KnobChange]:
        """As Client.reset_knobs()."""
        return await asyncio.to_thread(self._admin.reset_knobs, *names)

    async def close(self) -> None:
        """Cancels what has not ended, and closes the connection."""
        await asyncio.gather(*(stream.close() for stream in list(self._streams.values())))
        if self._loop is not None and not self._connection.closed and self._connection.owner == os.getpid():
            self._loop.remove_reader(self._connection.socket.fileno())
            self._loop.remove_reader(self._connection.monitor.fileno())
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        # The last messages get 200 ms to leave.
        await asyncio.to_thread(self._connection.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _check(self) -> None:
        with self._connection.used():
            pass

    def _open(self, session: Session) -> AsyncStream:
        stream = self._streams[session.uid] = AsyncStream(self, session)
        self._look_soon()
        return stream

    def _forget(self, stream: AsyncStream) -> None:
        self._streams.pop(stream.uid, None)
        self._connection.remove(stream._session)

    def _tell(self, session: Session) -> None:
        stream = self._streams.get(session.uid)
        if stream is not None:
            stream._news.set()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._connection.socket.fileno(), self._look)
            loop.add_reader(self._connection.monitor.fileno(), self._look)
        elif self._loop is not loop:
            raise RuntimeError("the client belongs to another event loop: every loop opens its own")

    def _look_soon(self) -> None:
        """After ZeroMQ was used: what it took in meanwhile is announced by no descriptor."""
        if self._soon is None and self._loop is not None and not self._connection.closed:
            self._soon = self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._connection.closed:
            return
        with self._connection.used():
            self._connection.look(LOOK_S)
            again = self._connection.has_messages()
        assert self._loop is not None
        if again:
            self._look_soon()
        if self._later is not None:
            self._later.cancel()
        # Silence has to be looked at while somebody waits for something.
        self._later = self._loop.call_later(LOOK_S, self._look) if self._streams else None


__all__ = ["AsyncClient", "AsyncStream"]
