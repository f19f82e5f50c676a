"""What the streams of both clients have in common."""
import os

from ._connection import Connection
from ._events import Answer, Collector, Done, Event, Usage
from ._session import Session


class BaseStream:
    """One answer under way. How it waits is its subclass's."""

    def __init__(self, connection: Connection, session: Session) -> None:
        self._connection = connection
        self._session = session
        self._collector = Collector()
        self._done: Done | None = None
        self._over = False  # its last event was given, or nobody wants it any more

    @property
    def uid(self) -> int:
        """The number that names the session, for the client's resume() in this or another process."""
        return self._session.uid

    @property
    def have(self) -> int:
        """How many output tokens the caller holds."""
        return self._session.taken

    @property
    def restarts(self) -> int:
        """How many restarts of the service this stream has seen."""
        return self._session.restarts

    @property
    def usage(self) -> Usage | None:
        """What the answer took; None before its last event."""
        return self._session.last_usage

    def cancel(self) -> None:
        """Asks for the end. The Done event, which says "cancelled" unless the answer had ended before, still comes."""
        with self._connection.used():
            self._session.cancel()
            self._looked()

    def detach(self) -> None:
        """Leaves the session to whoever resumes it, and does not cancel it. Nothing more comes from this stream."""
        self._leave()

    def _looked(self) -> None:
        """Something was done with the session."""

    def _leave(self) -> None:
        """Nothing more is given."""
        self._over = True

    def _take(self) -> Event:
        """The event that is there."""
        try:
            with self._connection.used():
                event = self._session.take()
                self._looked()
        except Exception:
            self._leave()
            raise
        self._collector.add(event)
        if isinstance(event, Done):
            self._done = event
            self._leave()
        return event

    def _whole(self) -> Answer:
        """All events of this stream, when the last was given."""
        if self._done is None:
            raise EOFError("the stream was left before its end")
        return self._collector.answer(self._done, self.uid)

    def _needs_cancel(self) -> bool:
        """Whether the session goes on, and this process may end it."""
        connection = self._connection
        return not self._session.ended and not connection.closed and connection.owner == os.getpid()
