"""A request: what to generate, checked as the C library checks it, and the message it becomes."""
import errno
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsFloat, TypedDict

from ._errors import InvalidRequest, OutriderError
from ._proto import client_pb2

# As in shared/base/limits.h.
CONTEXT_MAX = 1 << 20
VOCAB_MAX = 1 << 20
TEXT_BYTES_MAX = 2 << 20
MESSAGE_BYTES_MAX = 4 << 20
DRAFT_DEPTH_MAX = 63
DRAFT_NODES_MAX = 511
DRAFT_WIDTH_MAX = 255
EXPERTS_MAX = 1024
GRAMMAR_BYTES_MAX = 65536
STOPS_MAX = 256
STOP_BYTES_MAX = 4095
STOPS_BYTES_MAX = 16384  # each with one byte more
LOGIT_BIASES_MAX = 256
TOP_LOGPROBS_MAX = 20
CLASS_BYTES_MAX = 31
DRY_BREAKER_BYTES_MAX = 127  # each with one byte more

_UINT32_MAX = (1 << 32) - 1
_UINT64_MAX = (1 << 64) - 1
_FLOAT_MAX = float.fromhex("0x1.fffffep+127")

_ROLES = ("system", "user", "assistant", "tool", "developer", "function")
_METHODS = ("auto", "none", "ngram", "model", "replay", "eagle3", "mtp", "mtp-lora", "layer-skip")
_COUPLINGS = ("gumbel", "maximal")
_RANKINGS = ("router", "static", "oracle")
_COVERAGES = ("substitution", "truncation")
_GRAMMARS = ("none", "json-schema", "json-object", "regex", "gbnf", "parts")

Message = Mapping[str, Any]
"""A message of a conversation, for example {"role": "user", "content": "Hello"}. Other keys (tool_calls, content that is None or a
list of parts) go to the model's chat template as they are."""

DraftMethod = Literal["auto", "none", "ngram", "model", "replay", "eagle3", "mtp", "mtp-lora", "layer-skip"]
Coupling = Literal["gumbel", "maximal"]
GrammarKind = Literal["none", "json-schema", "json-object", "regex", "gbnf", "parts"]


class Options(TypedDict, total=False):
    """What a request may say beside its text; all keys are optional. The input is one of: the prompt, `tokens`, `messages`."""

    tokens: Sequence[int]
    """Token ids instead of a prompt."""
    messages: Sequence[Message]
    """A conversation instead of a prompt; the model's chat template renders it. At most 2 MiB together."""
    variables: Mapping[str, Any]
    """What the chat template reads beside the messages: tools, documents, enable_thinking and so on."""

    uid: int
    """The number that names the session; 0 (the default): a random one. The same request under the same number gets the same answer
    from its beginning, also from another process, as long as the service keeps it."""
    prefix_domain: int
    """The computed beginning of a prompt is used again for requests of the same number only: one per user, say. 0 is the default."""
    max_tokens: int
    """0 (the default): until the model ends or the context is full."""
    temperature: float
    """0 (the default) takes the most probable token; else 1e-30 to 100."""
    top_k: int
    """Up to 1048576; 0 (the default): off."""
    top_p: float
    """More than 0, up to 1, which is off (the default)."""
    min_p: float
    """0 to 1; 0 (the default): off."""
    repeat_penalty: float
    """More than 0, up to 10; 1 (the default) is off."""
    repeat_window: int
    """How many of the last tokens the penalty counts, up to 1048576; 0 (the default): all."""
    presence_penalty: float
    """OpenAI's, -2 to 2; 0 (the default) is off. A token that the answer has already loses this once; the prompt does not count."""
    frequency_penalty: float
    """Likewise, once for each time that the answer has the token."""
    dry_multiplier: float
    """DRY, as llama.cpp has it: 0 to 100; 0 (the default): off. Where the last n tokens came before, the token that followed them then
    loses multiplier * base^(n - allowed length), if n is at least the allowed length."""
    dry_base: float
    """1 to 100; 1.75 by default."""
    dry_allowed_length: int
    """1 to 256; 2 by default."""
    dry_window: int
    """How many of the last tokens, of the prompt too, count, up to 1048576; 0 (the default): all."""
    dry_breakers: Sequence[str]
    """Texts that no repetition goes across, in place of newline, ":", '"' and "*"; together, each with one byte more, up to 127 bytes."""
    top_n_sigma: float
    """0 to 100; 0 (the default): off. Tokens stay whose logit is within so many standard deviations of the greatest."""
    xtc: tuple[float, float]
    """Probability and threshold: with that probability (0 to 1; 0, the default: off) all tokens go whose probability reaches the
    threshold (more than 0, up to 0.5), but the least probable of them."""
    seed: int
    """0 by default: the same request gives the same answer, sampled or not."""
    stop: str | Sequence[str]
    """The output ends before the first of these strings. Up to 256 of 1 to 4095 bytes."""
    logit_bias: Mapping[int, float]
    """Added to the logits of these tokens; up to 256."""
    grammar: tuple[GrammarKind, str]
    """What the answer must match: the kind and its source, up to 65536 bytes: ("json-schema", SCHEMA), ("json-object", ""),
    ("regex", EXPRESSION), ("gbnf", GRAMMAR in llama.cpp's notation) or ("parts", JSON: outrider(3) says how). The answer ends where it is complete."""
    ignore_eos: bool
    """Go on after end-of-text tokens."""
    control_text: bool
    """The text has that of control tokens too, but not of the one that ends the answer."""
    request_class: str
    """A class of the service's setting "classes", which decides what is computed first and how fast answers are to come. Not given: "default"."""
    deadline: float
    """Seconds from the start of the request; 0 (the default): none. The answer then ends as "deadline"."""

    k: int
    """Draft length: -1 (the default), the policy chooses; 0 to 63, fixed. Like all that follows it changes how fast tokens come, and
    not the tokens."""
    draft_tree: tuple[int, int]
    """Tokens of a draft (up to 511) and alternatives behind one token (up to 255); K is then the depth. (0, 0), the default: the verifier's setting, a chain
    of K tokens."""
    draft_method: DraftMethod
    """"auto" by default."""
    budget: tuple[int | str, str, str]
    """An expert budget: at most this many experts of a layer compute drafted tokens (a number, or "0-3:16,4-:8" by layers); which are kept ("router", "static" or "oracle");
    and what a token does without one that it chose ("substitution" or "truncation"). Lossy: it alone changes the tokens, and
    Usage.lossy says so. "all" experts: no budget, whatever the service is set to."""
    coupling: Coupling
    """"gumbel" (the default: the same tokens whatever is drafted) or "maximal" (the same distribution)."""
    replay: Sequence[int]
    """What the method "replay" proposes: a recorded continuation."""
    replay_error: float
    """With this probability each of its tokens is wrong, 0 to 1."""
    audit: Sequence[int]
    """Checks these tokens of an answer instead of writing one: Tokens.picked says which token the model itself picks in the place of each,
    Usage.changed_tokens in how many places that is another one. Not with an expert budget, a grammar or the coupling "maximal"."""
    logprobs: int
    """Events then carry the log probability of each token and of so many likely ones (0 to 20) at its place: the model's own, before
    biases, penalties, temperature and filters. None or -1 (the default): none."""
    logits_hash: bool
    """Events then carry a 64-bit hash of the logits behind each token."""


def _whole(name: str, value: object, low: int, high: int, words: str = "") -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidRequest(errno.EINVAL, f"{name} is {value!r:.64}: a whole number is expected")
    number = int(value.__index__())
    if not low <= number <= high:
        raise InvalidRequest(errno.EINVAL, f"{name} is {number}: allowed are {words or f'{low} to {high}'}")
    return number


def _class_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= CLASS_BYTES_MAX:
        raise InvalidRequest(errno.EINVAL, f"request_class is {name!r:.64}: a name of 1 to {CLASS_BYTES_MAX} characters is expected")
    return name


def as_float(value: float) -> float:
    """What a C float holds of it."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _real(name: str, value: object, low: float, high: float, words: str, above: bool = False, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise InvalidRequest(errno.EINVAL, f"{name} is {value!r:.64}: a number is expected")
    number = as_float(float(value))
    if not ((number > low if above else number >= low) and number <= high) and not (zero and number == 0):
        raise InvalidRequest(errno.EINVAL, f"{name} is {value!r}: allowed are {words}")
    return number


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(errno.EINVAL, f"{name} is {value!r:.64}: True or False is expected")
    return value


def _utf8(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(errno.EINVAL, f"{name} is {value!r:.64}: a string is expected")
    if "\0" in value:
        raise InvalidRequest(errno.EINVAL, f"{name}: character {value.index(chr(0))} is NUL, which no text may have")
    try:
        return value.encode()
    except UnicodeEncodeError as e:
        raise InvalidRequest(errno.EINVAL, f"{name}: character {e.start} is half of a surrogate pair, which UTF-8 cannot have") from None


def _one_of(name: str, value: object, names: Sequence[str]) -> int:
    if value not in names:
        raise InvalidRequest(errno.EINVAL, f"{name} {value!r:.64}: allowed are {', '.join(names[:-1])} and {names[-1]}")
    return names.index(str(value))


def _ids(name: str, values: object) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidRequest(errno.EINVAL, f"{name} is {values!r:.64}: a list of token ids is expected")
    ids = [_whole(f"{name}[{i}]", value, 0, (1 << 31) - 1) for i, value in enumerate(values)]
    if len(ids) > CONTEXT_MAX:
        raise InvalidRequest(errno.E2BIG, f"{name}: {len(ids)} tokens: at most {CONTEXT_MAX} are allowed")
    return ids


def _object(name: str, value: object) -> str:
    if not isinstance(value, Mapping):
        raise InvalidRequest(errno.EINVAL, f"{name} is {value!r:.64}: a dict is expected")
    try:
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise InvalidRequest(errno.EINVAL, f"{name} cannot be written as JSON: {e}") from None


def _add_message(conversation: client_pb2.Conversation, name: str, message: object) -> int:
    """Returns the bytes of its text."""
    if not isinstance(message, Mapping):
        raise InvalidRequest(errno.EINVAL, f"{name} is {message!r:.64}: a dict with role and content is expected")
    role, content = message.get("role"), message.get("content")
    if set(message) == {"role", "content"} and isinstance(role, str) and isinstance(content, str):
        if role not in _ROLES:
            raise InvalidRequest(errno.EINVAL, f"{name}: role {role!r:.64}: expected {', '.join(_ROLES[:-1])} or {_ROLES[-1]}")
        conversation.messages.add(role=role, text=content)
        return len(_utf8(f"{name}: content", content))
    text = _object(name, message)
    conversation.messages.add(json=text)
    return len(_utf8(name, text))


def _set_messages(generate: client_pb2.Generate, options: Options) -> None:
    messages = options["messages"]
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise InvalidRequest(errno.EINVAL, f"messages is {messages!r:.64}: a list of dicts is expected")
    conversation = generate.conversation
    conversation.SetInParent()
    n = sum(_add_message(conversation, f"messages[{i}]", message) for i, message in enumerate(messages))
    if options.get("variables") is not None:
        conversation.variables = _object("variables", options["variables"])
        n += len(_utf8("variables", conversation.variables))
    if n > TEXT_BYTES_MAX:
        raise InvalidRequest(errno.E2BIG, f"messages of {n} bytes: at most {TEXT_BYTES_MAX} are allowed")


def _set_input(generate: client_pb2.Generate, prompt: str | None, options: Options) -> None:
    given = [name for name, value in (("a prompt", prompt), ("tokens", options.get("tokens")), ("messages", options.get("messages")))
             if value is not None]
    if len(given) != 1:
        raise InvalidRequest(errno.EINVAL, "the request has neither prompt nor tokens nor messages" if not given else
                             f"the request has {' and '.join(given)}: it may have one of them")
    if options.get("variables") is not None and given != ["messages"]:
        raise InvalidRequest(errno.EINVAL, f"variables are for messages, and the request has {given[0]}")
    if prompt is not None:
        n = len(_utf8("prompt", prompt))
        if n > TEXT_BYTES_MAX:
            raise InvalidRequest(errno.E2BIG, f"prompt of {n} bytes: at most {TEXT_BYTES_MAX} are allowed")
        generate.prompt = prompt
    elif given == ["tokens"]:
        generate.tokens.SetInParent()
        generate.tokens.ids.extend(_ids("tokens", options["tokens"]))
    else:
        _set_messages(generate, options)


def _set_grammar(generate: client_pb2.Generate, grammar: object) -> None:
    if not isinstance(grammar, Sequence) or isinstance(grammar, str) or len(grammar) != 2:
        raise InvalidRequest(errno.EINVAL, f"grammar is {grammar!r:.64}: a tuple of kind and source is expected")
    generate.grammar_kind = _one_of("grammar kind", grammar[0], _GRAMMARS)
    n = len(_utf8("grammar", grammar[1]))
    if n > GRAMMAR_BYTES_MAX:
        raise InvalidRequest(errno.E2BIG, f"grammar of {n} bytes: at most {GRAMMAR_BYTES_MAX} are allowed")
    generate.grammar = grammar[1]


def _set_stops(generate: client_pb2.Generate, stop: object) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, Iterable):
        raise InvalidRequest(errno.EINVAL, f"stop is {stop!r:.64}: a string or a list of them is expected")
    everything = 0
    for i, text in enumerate(stops):
        n = len(_utf8(f"stop[{i}]", text))
        everything += n + 1
        if not 1 <= n <= STOP_BYTES_MAX:
            raise InvalidRequest(errno.EINVAL, f"stop string of {n} bytes: allowed are 1 to {STOP_BYTES_MAX}")
        if i >= STOPS_MAX:
            raise InvalidRequest(errno.E2BIG, f"more than {STOPS_MAX} stop strings")
        if everything > STOPS_BYTES_MAX:
            raise InvalidRequest(errno.E2BIG, f"stop strings of {everything - i - 1} bytes: "
                                 f"all together may have {STOPS_BYTES_MAX - i - 1}")
        generate.stop.append(text)


def _set_biases(sampling: client_pb2.Sampling, biases: object) -> None:
    if not isinstance(biases, Mapping):
        raise InvalidRequest(errno.EINVAL, f"logit_bias is {biases!r:.64}: a dict of token ids and numbers is expected")
    if len(biases) > LOGIT_BIASES_MAX:
        raise InvalidRequest(errno.E2BIG, f"more than {LOGIT_BIASES_MAX} logit biases")
    for token, bias in biases.items():
        sampling.logit_bias.add(token=_whole("token of a logit bias", token, 0, (1 << 31) - 1),
                                bias=_real("logit bias", bias, -_FLOAT_MAX, _FLOAT_MAX, "numbers that a float can hold"))


def _set_penalties(sampling: client_pb2.Sampling, given: Mapping[str, object]) -> None:
    if "repeat_penalty" in given:
        sampling.repeat_penalty = _real("repeat_penalty", given["repeat_penalty"], 0, 10, "more than 0, up to 10", above=True)
    if "repeat_window" in given:
        sampling.repeat_window = _whole("repeat_window", given["repeat_window"], 0, CONTEXT_MAX)
    if "presence_penalty" in given:
        sampling.presence_penalty = _real("presence_penalty", given["presence_penalty"], -2, 2, "-2 to 2")
    if "frequency_penalty" in given:
        sampling.frequency_penalty = _real("frequency_penalty", given["frequency_penalty"], -2, 2, "-2 to 2")


def _set_dry(sampling: client_pb2.Sampling, given: Mapping[str, object]) -> None:
    if "dry_multiplier" in given:
        sampling.dry_multiplier = _real("dry_multiplier", given["dry_multiplier"], 0, 100, "0 to 100")
    if "dry_base" in given:
        sampling.dry_base = _real("dry_base", given["dry_base"], 1, 100, "1 to 100")
    if "dry_allowed_length" in given:
        sampling.dry_allowed_length = _whole("dry_allowed_length", given["dry_allowed_length"], 1, 256)
    if "dry_window" in given:
        sampling.dry_window = _whole("dry_window", given["dry_window"], 0, CONTEXT_MAX)
    if "dry_breakers" in given:
        _set_breakers(sampling, given["dry_breakers"])


def _set_breakers(sampling: client_pb2.Sampling, breakers: object) -> None:
    if isinstance(breakers, str) or not isinstance(breakers, Sequence) or not breakers:
        raise InvalidRequest(errno.EINVAL, f"dry_breakers is {breakers!r:.64}: a list of strings is expected")
    sizes = [len(_utf8(f"dry_breakers[{i}]", text)) for i, text in enumerate(breakers)]
    if 0 in sizes:
        raise InvalidRequest(errno.EINVAL, f"dry_breakers[{sizes.index(0)}] is empty: a text is expected")
    if sum(sizes) + len(sizes) > DRY_BREAKER_BYTES_MAX:
        raise InvalidRequest(errno.E2BIG, f"dry_breakers of {sum(sizes) + len(sizes)} bytes, each with one byte more: "
                             f"at most {DRY_BREAKER_BYTES_MAX}")
    sampling.dry_breakers.extend(breakers)


def _set_xtc(sampling: client_pb2.Sampling, xtc: object) -> None:
    if not isinstance(xtc, (tuple, list)) or len(xtc) != 2:
        raise InvalidRequest(errno.EINVAL, f"xtc is {xtc!r:.64}: (probability, threshold) is expected")
    sampling.xtc_probability = _real("xtc[0]", xtc[0], 0, 1, "0 to 1")
    sampling.xtc_threshold = _real("xtc[1]", xtc[1], 0, 0.5, "more than 0, up to 0.5", above=True)


def _set_sampling(generate: client_pb2.Generate, given: Mapping[str, object]) -> None:
    sampling = generate.sampling
    sampling.SetInParent()
    if "temperature" in given:
        sampling.temperature = _real("temperature", given["temperature"], as_float(1e-30), 100, "0, or 1e-30 to 100", zero=True)
    if "top_k" in given:
        sampling.top_k = _whole("top_k", given["top_k"], 0, VOCAB_MAX)
    if "top_p" in given:
        sampling.top_p = _real("top_p", given["top_p"], 0, 1, "more than 0, up to 1", above=True)
    if "min_p" in given:
        sampling.min_p = _real("min_p", given["min_p"], 0, 1, "0 to 1")
    if "top_n_sigma" in given:
        sampling.top_n_sigma = _real("top_n_sigma", given["top_n_sigma"], 0, 100, "0 to 100")
    if "xtc" in given:
        _set_xtc(sampling, given["xtc"])
    _set_penalties(sampling, given)
    _set_dry(sampling, given)
    if "seed" in given:
        sampling.seed = _whole("seed", given["seed"], 0, _UINT64_MAX)
    if "logit_bias" in given:
        _set_biases(sampling, given["logit_bias"])
    if "coupling" in given:
        sampling.coupling = _one_of("coupling", given["coupling"], _COUPLINGS)


def _set_draft(generate: client_pb2.Generate, given: Mapping[str, object]) -> None:
    if "k" in given:
        generate.k_plus_one = 1 + _whole("k", given["k"], -1, DRAFT_DEPTH_MAX,
                                         f"0 to {DRAFT_DEPTH_MAX}, or -1 for the policy's choice")
    if "draft_tree" in given:
        tree = given["draft_tree"]
        if not isinstance(tree, (tuple, list)) or len(tree) != 2:
            raise InvalidRequest(errno.EINVAL, f"draft_tree is {tree!r:.64}: (tokens, width) is expected")
        nodes = _whole("draft_tree[0]", tree[0], 0, DRAFT_NODES_MAX)
        width = _whole("draft_tree[1]", tree[1], 0, DRAFT_WIDTH_MAX)
        if (nodes > 0) != (width > 0):
            raise InvalidRequest(errno.EINVAL, f"a draft tree of {nodes} tokens and width {width}: tokens are 1 to {DRAFT_NODES_MAX} "
                                 f"and the width 1 to {DRAFT_WIDTH_MAX}, or both are 0 for a chain")
        generate.draft_nodes, generate.draft_width = nodes, width
    if "draft_method" in given:
        generate.draft_method = _one_of("draft_method", given["draft_method"], _METHODS)
    if "budget" in given:
        budget = given["budget"]
        if not isinstance(budget, (tuple, list)) or len(budget) != 3:
            raise InvalidRequest(errno.EINVAL, f"budget is {budget!r:.64}: (experts, ranking, coverage) is expected")
        experts = budget[0] if isinstance(budget[0], str) else str(_whole("budget[0]", budget[0], 1, EXPERTS_MAX))
        ranking = _one_of("budget[1]", budget[1], _RANKINGS)
        coverage = _one_of("budget[2]", budget[2], _COVERAGES)
        generate.budget_experts = experts
        generate.budget_ranking, generate.budget_coverage = (ranking, coverage) if experts != "all" else (0, 0)
    if "replay" in given:
        generate.replay.SetInParent()
        generate.replay.ids.extend(_ids("replay", given["replay"]))
    if "audit" in given:
        tokens = _ids("audit", given["audit"])
        if tokens:
            generate.audit.ids.extend(tokens)
    if "replay_error" in given:
        generate.replay_error = _real("replay_error", given["replay_error"], 0, 1, "0 to 1")


def generate_of(prompt: str | None, options: Options) -> client_pb2.Generate:
    """The message for a request, without what belongs to a stream. None as a value is as if the key was not there."""
    unknown = sorted(set(options) - set(Options.__annotations__))
    if unknown:
        raise InvalidRequest(errno.EINVAL, f"a request has no {unknown[0]!r}; it may have {', '.join(Options.__annotations__)}")
    given = {name: value for name, value in options.items() if value is not None}
    generate = client_pb2.Generate()
    _set_input(generate, prompt, options)
    _set_sampling(generate, given)
    _set_draft(generate, given)
    if "max_tokens" in given:
        generate.max_tokens = _whole("max_tokens", given["max_tokens"], 0, _UINT32_MAX)
    if "grammar" in given:
        _set_grammar(generate, given["grammar"])
    if "stop" in given:
        _set_stops(generate, given["stop"])
    if "uid" in given:
        generate.session_uid = _whole("uid", given["uid"], 0, _UINT64_MAX)
    if "prefix_domain" in given:
        generate.prefix_domain = _whole("prefix_domain", given["prefix_domain"], 0, _UINT64_MAX)
    if "ignore_eos" in given:
        generate.ignore_eos = _flag("ignore_eos", given["ignore_eos"])
    if "request_class" in given:
        generate.class_name = _class_name(given["request_class"])
    if "deadline" in given:
        # Rounded up: 0 would be none.
        generate.deadline_ms = math.ceil(1000 * _real("deadline", given["deadline"], 0, 1e15, "0 to 1e15 seconds"))
    if "control_text" in given:
        generate.control_text = _flag("control_text", given["control_text"])
    if "logprobs" in given:
        generate.logprobs_plus_one = 1 + _whole("logprobs", given["logprobs"], -1, TOP_LOGPROBS_MAX,
                                                f"0 to {TOP_LOGPROBS_MAX}, or -1 for none")
    if "logits_hash" in given:
        generate.logits_hash = _flag("logits_hash", given["logits_hash"])
    if generate.ByteSize() > MESSAGE_BYTES_MAX:
        raise too_large(generate.ByteSize())
    return generate


def too_large(n: int) -> OutriderError:
    """A message that can never be sent."""
    return InvalidRequest(errno.E2BIG, f"request of {n} bytes: at most {MESSAGE_BYTES_MAX} are allowed")
