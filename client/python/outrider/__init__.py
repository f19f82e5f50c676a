"""The client of an Outrider service.

    import outrider

    with outrider.Client() as client:
        with client.stream("In the beginning", max_tokens=40) as stream:
            for event in stream:
                print(event.text, end="", flush=True)

Client waits, AsyncClient is for asyncio; both do the same. A restart of the service is not an error: the client connects again and
the stream goes on after the last token it holds; no token is lost, repeated or changed. What fails raises an OutriderError with the
service's sentence."""
from ._admin import Knob, KnobChange, Process, Status, Value, status
from ._async import AsyncClient, AsyncStream
from ._errors import Busy, InvalidRequest, OutriderError, Stale, Unavailable, UnknownSession
from ._events import Answer, Done, End, Event, Live, Logprob, Tokens, Usage
from ._request import Coupling, DraftMethod, Message, Options
from ._sync import Client, Stream

__version__ = "0.1.0"

__all__ = [
    "Answer", "AsyncClient", "AsyncStream", "Busy", "Client", "Coupling", "Done", "DraftMethod", "End", "Event", "InvalidRequest",
    "Knob", "KnobChange", "Live", "Logprob", "Message", "Options", "OutriderError", "Process", "Stale", "Status", "Stream", "Tokens",
    "Unavailable", "UnknownSession", "Usage", "Value", "status",
]
