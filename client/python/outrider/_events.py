"""What a stream gives: events while it goes on, and the answer behind the last of them."""
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ._proto import client_pb2

End = Literal["eos", "stop", "length", "cancelled", "deadline"]
"""Why an answer ended. An answer that the service could not finish raises OutriderError instead."""

ENDS: tuple[End, ...] = ("eos", "stop", "length", "cancelled", "deadline")  # SESSION_END_EOS is 1


@dataclass(frozen=True, slots=True)
class Live:
    """How the service is doing on this request."""

    k: int = 0
    """Draft length of the last iteration."""
    drafted: int = 0
    """This and the next two are running totals of the request."""
    accepted: int = 0
    iterations: int = 0
    utility: float = 0.0
    """Of speculation, as the policy measured it; 0: not measured."""
    expert_hits: int = 0
    expert_misses: int = 0
    policy: str = ""
    drafter_alive: bool = False
    cache_alive: bool = False
    policy_alive: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer took. Times are in nanoseconds."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    iterations: int = 0
    drafted: int = 0
    accepted: int = 0
    queue_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    """First to last output token."""
    draft_ns: int = 0
    verify_ns: int = 0
    sample_ns: int = 0
    k_used: Sequence[int] = ()
    """Iterations with K = index."""
    drafted_at: Sequence[int] = ()
    """Tokens drafted at position index, and below how many of them were accepted."""
    accepted_at: Sequence[int] = ()
    unique_experts: int = 0
    expert_hits: int = 0
    expert_misses: int = 0
    lossy: Sequence[str] = ()
    """What may have changed the answer: an expert budget; else empty."""
    restarts: int = 0
    """Restarts of the service that this stream went through."""
    cached_tokens: int = 0
    """Tokens of the prompt that were there from other requests that begin alike."""
    lossy_tokens: int = 0
    """Tokens that an expert budget affected."""
    changed_tokens: int = 0
    """Of an audit: in the places of so many tokens the model picks another one."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely a token is at its place: the model's own log probability, before biases, penalties, temperature and filters."""

    token: int
    logprob: float
    """Natural logarithm."""
    text: bytes
    """What the token adds to the output, nothing for a control token; in `top` its name. May be part of a character."""
    top: Sequence["Logprob"] = ()
    """The most likely tokens at this place, the first the most likely, as many as the request asked for."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some more tokens."""

    first: int
    """Index of tokens[0] in the output."""
    tokens: Sequence[int]
    text: str
    """Whole characters. May be empty: a character can take several tokens."""
    live: Live = field(repr=False)
    logits_hash: Sequence[int] = field(default=(), repr=False)
    """One for each token, where the request asked for them."""
    logprobs: Sequence[Logprob] = field(default=(), repr=False)
    """Likewise."""
    picked: Sequence[int] = field(default=(), repr=False)
    """Of an audit: what the model picks in the place of each token."""


@dataclass(frozen=True, slots=True)
class Done:
    """The last event."""

    end: End
    text: str
    """What was held back until now; nearly always empty."""
    stop: str
    """The stop string that ended the answer, or ""."""
    usage: Usage


Event = Tokens | Done


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    text: str
    tokens: Sequence[int]
    end: End
    stop: str
    """The stop string that ended it, or ""."""
    usage: Usage
    uid: int
    """The number that names the session."""
    logits_hash: Sequence[int] = field(default=(), repr=False)
    logprobs: Sequence[Logprob] = field(default=(), repr=False)
    picked: Sequence[int] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.text


def _text(raw: bytes) -> str:
    # A model may emit bytes that are no UTF-8; whole characters are never divided between messages.
    return raw.decode(errors="replace")


def _logprobs(message: client_pb2.Tokens) -> tuple[Logprob, ...]:
    each = message.logprobs_each
    found = [Logprob(*entry) for entry in zip(message.logprob_ids, message.logprobs, message.logprob_texts)]
    return tuple(replace(found[at], top=tuple(found[at + 1:at + each])) for at in range(0, len(found), each or 1))


def tokens_event(message: client_pb2.Tokens) -> Tokens:
    """The event for a message."""
    live = message.live
    return Tokens(message.first, tuple(message.ids), _text(message.text),
                  Live(live.k, live.drafted, live.accepted, live.iterations, live.utility, live.expert_hits, live.expert_misses,
                       live.policy, live.drafter_alive, live.cache_alive, live.policy_alive),
                  tuple(message.logits_hash), _logprobs(message), tuple(message.picked))


def usage_of(u: client_pb2.Usage, restarts: int) -> Usage:
    """The usage of a message; restarts: those that the stream has seen itself."""
    return Usage(u.prompt_tokens, u.output_tokens, u.iterations, u.drafted, u.accepted, u.queue_ns, u.prefill_ns, u.decode_ns,
                 u.draft_ns, u.verify_ns, u.sample_ns, tuple(u.k_used), tuple(u.drafted_at), tuple(u.accepted_at), u.unique_experts,
                 u.expert_hits, u.expert_misses, tuple(u.lossy), max(u.restarts, restarts), u.cached_tokens,
                 u.lossy_tokens, u.changed_tokens)


def done_event(message: client_pb2.Done, end: End, restarts: int) -> Done:
    """The event for a message that says this end."""
    return Done(end, _text(message.text), message.stop, usage_of(message.usage, restarts))


class Collector:
    """Puts the events of a stream together."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._hashes: list[int] = []
        self._logprobs: list[Logprob] = []
        self._picked: list[int] = []

    def add(self, event: Event) -> None:
        """The next event."""
        self._text.append(event.text)
        if isinstance(event, Tokens):
            self._tokens.extend(event.tokens)
            self._hashes.extend(event.logits_hash)
            self._logprobs.extend(event.logprobs)
            self._picked.extend(event.picked)

    def answer(self, done: Done, uid: int) -> Answer:
        """All of them, of which this was the last."""
        return Answer("".join(self._text), tuple(self._tokens), done.end, done.stop, done.usage, uid, tuple(self._hashes),
                      tuple(self._logprobs), tuple(self._picked))
