"""One generation as its client sees it: what has arrived, what was taken, and how to go on after a break. It does what
client/sdk/stream_state.c does, by the same rules, for the synchronous and the asynchronous client.

Tokens are known by their index. A batch that starts below `arrived` is a repeat and is dropped whole; one that starts above it shows
a gap, and the session asks again from `arrived`. Text cannot be cut at a token, so a batch that overlaps is asked for again too."""
import errno
from collections import deque
from typing import Protocol

from ._errors import OutriderError, error_of
from ._events import ENDS, Done, Event, Usage, done_event, tokens_event
from ._proto import client_pb2, envelope_pb2

# Silence before a session asks again, doubled each time up to the second; a service that lives answers within the third.
ASK_S_MIN = 0.25
ASK_S_MAX = 2.0
ANSWER_S = 0.25
# Silence before a session looks whether the service has ended for good.
LOOK_S = 0.5
# Ends in a row that left tokens out, before the service is taken to be broken.
INCOMPLETE_MAX = 3

_UINT32_MAX = (1 << 32) - 1
_FAST = 1 << 31


def _arithmetic_text(number: int) -> str:
    """As shared/base/arithmetic.h has it."""
    return f"fast-{number - _FAST:08x}" if number >= _FAST else str(number)



class Link(Protocol):
    """What a session needs of the connection that it uses."""

    directory: str
    connected: bool
    answered: bool
    first_s: float
    away_s: float
    silence_s: float
    """Runs on while somebody waits, and not while this process stands still."""
    waited_s: float
    """Runs on always."""

    def send(self, envelope: envelope_pb2.Envelope) -> int:
        """Queues the message and returns its number; 0: the queue is full."""

    def is_there(self) -> bool:
        """Whether there is a verifier, whatever it does."""

    def given_up(self) -> tuple[str, bool] | None:
        """As _runtime.given_up() says, and whether it was after the connection was made."""


class Session:
    """The state of one stream. Who owns it gives it messages and time, and takes its events."""

    def __init__(self, link: Link, uid: int, have: int, window: int, generate: client_pb2.Generate | None) -> None:
        self.link = link
        self.uid = uid
        self.generate = generate  # to send again; None for a session that was begun elsewhere
        self.window = window
        self.arrived = self.taken = have  # output tokens: received in order; given to the caller
        self.credit = min(have + window, _UINT32_MAX)  # granted, absolute
        self.request_id = self.generate_id = 0  # of the last Generate or Resume; of the last Generate
        self.restarts = 0
        self.ended = False  # nothing more comes
        self.told = False  # the caller has got the last event
        self.error: OutriderError | None = None
        self.events: deque[client_pb2.Tokens | Done] = deque()
        self.last_usage: Usage | None = None
        self._cancelling = self._accepted = self._gap = False
        self._generation = self._engine = self._arithmetic = 0
        self._budgeted = False
        self._incomplete = 0
        self._silent_since = link.silence_s
        self._began = link.waited_s
        self._ask_after = ASK_S_MIN
        self._asked = 0.0  # of the silence, when it was first asked again; 0: not yet

    # What the caller does.

    def has_event(self) -> bool:
        """Whether take() has something to give, or an error that it has not raised yet."""
        return bool(self.events) or (self.ended and not self.told)

    def take(self) -> Event:
        """The next event. Raises what ended the session, or EOFError after its last event."""
        if not self.events:
            self.told = True
            if self.error is not None:
                raise self.error
            raise EOFError
        event = self.events.popleft()
        if isinstance(event, Done):
            self.told = True
            self.last_usage = event.usage
            return event
        self.taken = event.first + len(event.ids)
        if not self.ended and self.credit != _UINT32_MAX and self.credit - self.taken <= self.window // 2:
            self._send_credit()
        return tokens_event(event)

    def start(self) -> None:
        """Sends, once or again, what the service must know. A full queue is tried again by tick()."""
        if self.generate is not None and not self._accepted:
            self._send_generate()
        else:
            self._send_resume()

    def cancel(self) -> None:
        """Asks for the end, which still comes as an event."""
        if not self.ended:
            self._cancelling = True
            self._send_cancel()

    # What the connection does.

    def count_anew(self) -> None:
        """Silence counts from now."""
        self._silent_since = self.link.silence_s
        self._asked = 0.0
        self._ask_after = ASK_S_MIN

    def connected(self) -> None:
        """There is a connection again: what was sent before may be lost. The first one finds the first Generate in ZeroMQ's queue;
        the same uid is the same session, so to say it again is harmless."""
        if not self.ended and (self._accepted or self._silent() >= ASK_S_MIN):
            self.start()
            self._ask_later()

    def handle(self, envelope: envelope_pb2.Envelope) -> None:
        """A message about this session."""
        if self.ended:
            return
        self.count_anew()
        body = envelope.WhichOneof("body")
        if body == "accepted":
            self._handle_accepted(envelope.accepted)
        elif body == "tokens":
            self._handle_tokens(envelope.tokens)
        elif body == "done":
            self._handle_done(envelope.done)
        elif body == "failure":
            self._handle_failure(envelope.failure, envelope.request_id)

    def tick(self) -> None:
        """Looks at how long it has been silent."""
        link = self.link
        if self.ended:
            return
        if self.arrived >= self.credit and not self._cancelling:
            self._silent_since = link.silence_s  # nothing may come: the caller has not taken what is here
            return
        silent = self._silent()
        limit = link.away_s if link.answered else link.first_s
        # Who is there is not away before it was asked and had the time to answer.
        if silent >= limit and limit < ASK_S_MIN + ANSWER_S and link.is_there():
            limit = ASK_S_MIN + ANSWER_S
        if self._fail_given_up(silent, silent >= limit) or self._fail_overdue(silent):
            return
        if silent >= limit:
            self._fail(errno.ETIMEDOUT if link.answered else errno.ECONNREFUSED,
                       f"no answer from the service in {link.directory} for {limit:.1f} s{self._what_to_do()}")
        elif link.connected and silent >= self._ask_after:
            self._ask_later()
            self.start()

    # Within.

    def _silent(self) -> float:
        return self.link.silence_s - self._silent_since

    def _ask_later(self) -> None:
        silent = self._silent()
        self._ask_after = silent + min(self._ask_after, ASK_S_MAX)
        self._asked = self._asked or silent

    def _fail(self, code: int, message: str, retry_ms: int = 0) -> None:
        self.error = error_of(code, message, retry_ms)
        self.ended = True

    def _end(self, done: Done) -> None:
        self.events.append(done)
        self.ended = True

    def _send_generate(self) -> None:
        assert self.generate is not None
        self.generate.have = self.arrived
        self.generate.credit = self.credit
        self.generate.arithmetic = self._arithmetic if self.arrived else 0
        self.generate.budgeted = bool(self.arrived and self._budgeted)
        number = self.link.send(envelope_pb2.Envelope(generate=self.generate))
        if number:
            self.request_id = self.generate_id = number

    def _send_resume(self) -> None:
        resume = client_pb2.Resume(session_uid=self.uid, have=self.arrived, credit=self.credit,
                                   arithmetic=self._arithmetic if self.arrived else 0)
        self.request_id = self.link.send(envelope_pb2.Envelope(resume=resume)) or self.request_id

    def _send_credit(self) -> None:
        starved = self.arrived >= self.credit
        self.credit = min(self.taken + self.window, _UINT32_MAX)
        self.link.send(envelope_pb2.Envelope(credit=client_pb2.Credit(session_uid=self.uid, credit=self.credit)))
        if starved:
            self.count_anew()  # silence up to now was ours

    def _send_cancel(self) -> None:
        self.link.send(envelope_pb2.Envelope(cancel=client_pb2.Cancel(session_uid=self.uid)))

    def _handle_accepted(self, accepted: client_pb2.Accepted) -> None:
        # The first part of an answer in one arithmetic, or of one model, and the rest in another are no answer at all.
        if self.arrived and self._arithmetic and accepted.arithmetic and self._arithmetic != accepted.arithmetic:
            self._send_cancel()
            self._fail(errno.ESTALE, f"this answer was begun with arithmetic {_arithmetic_text(self._arithmetic)}, but the service "
                       f"came back with arithmetic {_arithmetic_text(accepted.arithmetic)}: it cannot go on after {self.arrived} tokens")
            return
        if self.arrived and self._engine and self._engine != accepted.engine:
            self._send_cancel()
            self._fail(errno.ESTALE, "the service came back with another model or KV number type, or its model file was touched: the "
                       f"answer cannot go on after {self.arrived} tokens")
            return
        self._engine = accepted.engine
        self._budgeted = accepted.budgeted
        self._arithmetic = accepted.arithmetic or self._arithmetic
        self.restarts += self._accepted and self._generation != accepted.generation
        self._accepted = True
        self._generation = accepted.generation
        self._gap = False
        if self._cancelling:
            self._send_cancel()  # the first may have gone to a predecessor

    def _handle_tokens(self, tokens: client_pb2.Tokens) -> None:
        n = len(tokens.ids)
        end = tokens.first + n
        if n and end <= self.arrived:
            return
        scored = {n * tokens.logprobs_each} == {len(tokens.logprob_ids), len(tokens.logprobs), len(tokens.logprob_texts)}
        if tokens.first != self.arrived or end > _UINT32_MAX or len(tokens.logits_hash) not in (0, n) or not scored or \
                len(tokens.picked) not in (0, n):
            # Once for a series of them, or the answers would be as many.
            if not self._gap:
                self._send_resume()
            self._gap = True
            return
        # The service answers, so it knows us; Accepted may have been lost.
        self._accepted = True
        self.arrived = end
        self._gap = False
        self._incomplete = 0
        self.events.append(tokens)

    def _handle_done(self, done: client_pb2.Done) -> None:
        # Ended for all we know, but tokens before the end are missing.
        if done.end in (1, 2, 3) and done.usage.output_tokens > self.arrived:
            self._incomplete += 1
            if self._incomplete > INCOMPLETE_MAX:
                self._fail(errno.EPROTO, f"the service ended after {done.usage.output_tokens} tokens but sent {self.arrived}")
            else:
                self._send_resume()
        elif 1 <= done.end <= len(ENDS):
            self._end(done_event(done, ENDS[done.end - 1], self.restarts))
        else:
            self._fail(errno.EREMOTEIO, done.message or "the service could not finish this answer")

    def _handle_failure(self, failure: envelope_pb2.Failure, request_id: int) -> None:
        code = failure.code if 0 < failure.code < 4096 else errno.EREMOTEIO
        # Only a Resume, Credit or Cancel can be about a session that is not known.
        unknown = code == errno.ENOENT and (not request_id or request_id != self.generate_id)
        if unknown and self.generate is not None and not self._cancelling:
            # A service that lost everything: the same request under the same number is the same answer.
            self._accepted = False
            self._send_generate()
        elif unknown and self._cancelling:
            self._end(Done("cancelled", "", "", Usage(output_tokens=self.arrived, restarts=self.restarts)))
        else:
            self._fail(errno.EBUSY if code == errno.EAGAIN else code, failure.message, failure.retry_ms)

    def _fail_given_up(self, silent: float, waited: bool) -> bool:
        """Silence that nobody will end: the service has gone since we came, or does not come and is known to have gone before."""
        if self.link.connected or (not waited and silent < LOOK_S):
            return False
        found = self.link.given_up()
        if found is None or not (found[1] or waited):
            return False
        self._fail(errno.ECONNREFUSED, f"the service in {self.link.directory} has given up: {found[0]}")
        return True

    def _fail_overdue(self, silent: float) -> bool:
        """The request's time is up, and the service, which would say so, says nothing to what it is asked meanwhile."""
        deadline_s = self.generate.deadline_ms / 1000 if self.generate is not None else 0
        asked = self._asked if self.link.connected else ASK_S_MIN  # who is not connected cannot ask
        if not deadline_s or self.link.waited_s - self._began < deadline_s or not asked or silent < asked + ANSWER_S:
            return False
        self._fail(errno.ETIMEDOUT, f"the time of {deadline_s:.1f} s is up, and the service in {self.link.directory} has not answered "
                   f"for {silent:.1f} s{self._what_to_do()}")
        return True

    def _what_to_do(self) -> str:
        if self.link.is_there():
            return ": the verifier's process exists, but it is stopped or hangs; outrider status shows it"
        return "" if self.link.answered else "; outrider up starts one, and outrider status shows which processes run"
