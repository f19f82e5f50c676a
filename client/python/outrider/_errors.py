"""What can go wrong. Every error has a sentence that a person should read."""
import errno
import os


class OutriderError(Exception):
    """Any failure of this package. `code` is the errno value that the C library returns for the same failure."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def name(self) -> str:
        """The name of the code, for example "EBUSY"."""
        return errno.errorcode.get(self.code, str(self.code))


class InvalidRequest(OutriderError, ValueError):
    """A value is out of its range, too long, or of the wrong kind. The message names it and the range."""


class Busy(OutriderError):
    """The service has as many requests as it takes. Try again later; `retry_s`: after so many seconds there may be room, 0: not known."""

    retry_s: float = 0.0


class Unavailable(OutriderError, ConnectionError):
    """There is no service, or it did not answer in the time that Client(first_wait=, away_wait=) allows."""


class UnknownSession(OutriderError, LookupError):
    """The service does not know this session (any more)."""


class Stale(OutriderError):
    """The service came back with another model or arithmetic: a half answer cannot be finished."""


_CLASSES: dict[int, type[OutriderError]] = {
    errno.EINVAL: InvalidRequest,
    errno.E2BIG: InvalidRequest,
    errno.EBUSY: Busy,
    errno.ECONNREFUSED: Unavailable,
    errno.ETIMEDOUT: Unavailable,
    errno.ENOENT: UnknownSession,
    errno.ESTALE: Stale,
}


def error_of(code: int, message: str, retry_ms: int = 0) -> OutriderError:
    """The exception for an errno value and a sentence; without a sentence the system's words for the code."""
    error = _CLASSES.get(code, OutriderError)(code, message or os.strerror(code))
    if isinstance(error, Busy):
        error.retry_s = retry_ms / 1000
    return error
