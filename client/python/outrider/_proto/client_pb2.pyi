from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Accepted(_message.Message):
    __slots__ = ["arithmetic", "budgeted", "engine", "generation", "output_tokens", "prompt_tokens", "session_uid"]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    BUDGETED_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    arithmetic: int
    budgeted: bool
    engine: int
    generation: int
    output_tokens: int
    prompt_tokens: int
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., generation: _Optional[int] = ..., engine: _Optional[int] = ..., arithmetic: _Optional[int] = ..., budgeted: bool = ...) -> None: ...

class ApplyTemplate(_message.Message):
    __slots__ = ["conversation", "tokens"]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    conversation: Conversation
    tokens: bool
    def __init__(self, conversation: _Optional[_Union[Conversation, _Mapping]] = ..., tokens: bool = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ["session_uid"]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ["json", "role", "text"]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    json: str
    role: str
    text: str
    def __init__(self, role: _Optional[str] = ..., text: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ["messages", "variables"]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    variables: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., variables: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ["credit", "session_uid"]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    credit: int
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ..., credit: _Optional[int] = ...) -> None: ...

class Detokenize(_message.Message):
    __slots__ = ["ids", "special"]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    special: bool
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., special: bool = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ["end", "message", "session_uid", "stop", "text", "usage"]
    END_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    end: int
    message: str
    session_uid: int
    stop: str
    text: bytes
    usage: Usage
    def __init__(self, session_uid: _Optional[int] = ..., end: _Optional[int] = ..., stop: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., message: _Optional[str] = ..., text: _Optional[bytes] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ["arithmetic", "audit", "budget_coverage", "budget_experts", "budget_ranking", "budgeted", "class_name", "control_text", "conversation", "credit", "deadline_ms", "draft_method", "draft_nodes", "draft_width", "grammar", "grammar_kind", "have", "ignore_eos", "k_plus_one", "logits_hash", "logprobs_plus_one", "max_tokens", "prefix_domain", "prompt", "replay", "replay_error", "sampling", "session_uid", "stop", "tokens"]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    BUDGETED_FIELD_NUMBER: _ClassVar[int]
    BUDGET_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_RANKING_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    CONTROL_TEXT_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_METHOD_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NODES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_KIND_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    K_PLUS_ONE_FIELD_NUMBER: _ClassVar[int]
    LOGITS_HASH_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_PLUS_ONE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ERROR_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    arithmetic: int
    audit: TokenList
    budget_coverage: int
    budget_experts: str
    budget_ranking: int
    budgeted: bool
    class_name: str
    control_text: bool
    conversation: Conversation
    credit: int
    deadline_ms: int
    draft_method: int
    draft_nodes: int
    draft_width: int
    grammar: str
    grammar_kind: int
    have: int
    ignore_eos: bool
    k_plus_one: int
    logits_hash: bool
    logprobs_plus_one: int
    max_tokens: int
    prefix_domain: int
    prompt: str
    replay: TokenList
    replay_error: float
    sampling: Sampling
    session_uid: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    tokens: TokenList
    def __init__(self, session_uid: _Optional[int] = ..., prompt: _Optional[str] = ..., tokens: _Optional[_Union[TokenList, _Mapping]] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., max_tokens: _Optional[int] = ..., ignore_eos: bool = ..., stop: _Optional[_Iterable[str]] = ..., deadline_ms: _Optional[int] = ..., credit: _Optional[int] = ..., k_plus_one: _Optional[int] = ..., draft_method: _Optional[int] = ..., replay: _Optional[_Union[TokenList, _Mapping]] = ..., replay_error: _Optional[float] = ..., logits_hash: bool = ..., draft_nodes: _Optional[int] = ..., draft_width: _Optional[int] = ..., have: _Optional[int] = ..., grammar_kind: _Optional[int] = ..., grammar: _Optional[str] = ..., budget_experts: _Optional[str] = ..., budget_ranking: _Optional[int] = ..., budget_coverage: _Optional[int] = ..., budgeted: bool = ..., control_text: bool = ..., logprobs_plus_one: _Optional[int] = ..., prefix_domain: _Optional[int] = ..., arithmetic: _Optional[int] = ..., class_name: _Optional[str] = ..., audit: _Optional[_Union[TokenList, _Mapping]] = ...) -> None: ...

class Live(_message.Message):
    __slots__ = ["accepted", "cache_alive", "drafted", "drafter_alive", "expert_hits", "expert_misses", "iterations", "k", "policy", "policy_alive", "utility"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CACHE_ALIVE_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ALIVE_FIELD_NUMBER: _ClassVar[int]
    EXPERT_HITS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_MISSES_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    POLICY_ALIVE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    cache_alive: bool
    drafted: int
    drafter_alive: bool
    expert_hits: int
    expert_misses: int
    iterations: int
    k: int
    policy: str
    policy_alive: bool
    utility: float
    def __init__(self, k: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., iterations: _Optional[int] = ..., utility: _Optional[float] = ..., expert_hits: _Optional[int] = ..., expert_misses: _Optional[int] = ..., policy: _Optional[str] = ..., drafter_alive: bool = ..., cache_alive: bool = ..., policy_alive: bool = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ["bias", "token"]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    bias: float
    token: int
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class ModelFacts(_message.Message):
    __slots__: list[str] = []
    def __init__(self) -> None: ...

class Resume(_message.Message):
    __slots__ = ["arithmetic", "credit", "have", "session_uid"]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    arithmetic: int
    credit: int
    have: int
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ..., have: _Optional[int] = ..., credit: _Optional[int] = ..., arithmetic: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ["coupling", "dry_allowed_length", "dry_base", "dry_breakers", "dry_multiplier", "dry_window", "frequency_penalty", "logit_bias", "min_p", "presence_penalty", "repeat_penalty", "repeat_window", "seed", "temperature", "top_k", "top_n_sigma", "top_p", "xtc_probability", "xtc_threshold"]
    COUPLING_FIELD_NUMBER: _ClassVar[int]
    DRY_ALLOWED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRY_BASE_FIELD_NUMBER: _ClassVar[int]
    DRY_BREAKERS_FIELD_NUMBER: _ClassVar[int]
    DRY_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    DRY_WINDOW_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPEAT_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPEAT_WINDOW_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_N_SIGMA_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    XTC_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    XTC_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    coupling: int
    dry_allowed_length: int
    dry_base: float
    dry_breakers: _containers.RepeatedScalarFieldContainer[str]
    dry_multiplier: float
    dry_window: int
    frequency_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    min_p: float
    presence_penalty: float
    repeat_penalty: float
    repeat_window: int
    seed: int
    temperature: float
    top_k: int
    top_n_sigma: float
    top_p: float
    xtc_probability: float
    xtc_threshold: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repeat_penalty: _Optional[float] = ..., repeat_window: _Optional[int] = ..., seed: _Optional[int] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., coupling: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., top_n_sigma: _Optional[float] = ..., xtc_probability: _Optional[float] = ..., xtc_threshold: _Optional[float] = ..., dry_multiplier: _Optional[float] = ..., dry_base: _Optional[float] = ..., dry_allowed_length: _Optional[int] = ..., dry_window: _Optional[int] = ..., dry_breakers: _Optional[_Iterable[str]] = ...) -> None: ...

class ServedModel(_message.Message):
    __slots__ = ["arch", "bos", "bytes", "chat_template", "eog", "eos", "file", "n_context", "n_vocab", "name"]
    ARCH_FIELD_NUMBER: _ClassVar[int]
    BOS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    EOG_FIELD_NUMBER: _ClassVar[int]
    EOS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    N_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    N_VOCAB_FIELD_NUMBER: _ClassVar[int]
    arch: str
    bos: int
    bytes: int
    chat_template: str
    eog: _containers.RepeatedScalarFieldContainer[int]
    eos: int
    file: str
    n_context: int
    n_vocab: int
    name: str
    def __init__(self, file: _Optional[str] = ..., name: _Optional[str] = ..., arch: _Optional[str] = ..., n_context: _Optional[int] = ..., n_vocab: _Optional[int] = ..., bos: _Optional[int] = ..., eos: _Optional[int] = ..., eog: _Optional[_Iterable[int]] = ..., chat_template: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Text(_message.Message):
    __slots__ = ["ends", "ids", "model", "text"]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    model: ServedModel
    text: bytes
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., text: _Optional[bytes] = ..., ends: _Optional[_Iterable[int]] = ..., model: _Optional[_Union[ServedModel, _Mapping]] = ...) -> None: ...

class TextRequest(_message.Message):
    __slots__ = ["apply_template", "detokenize", "model_facts", "tokenize"]
    APPLY_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FACTS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_FIELD_NUMBER: _ClassVar[int]
    apply_template: ApplyTemplate
    detokenize: Detokenize
    model_facts: ModelFacts
    tokenize: Tokenize
    def __init__(self, tokenize: _Optional[_Union[Tokenize, _Mapping]] = ..., detokenize: _Optional[_Union[Detokenize, _Mapping]] = ..., apply_template: _Optional[_Union[ApplyTemplate, _Mapping]] = ..., model_facts: _Optional[_Union[ModelFacts, _Mapping]] = ...) -> None: ...

class TokenList(_message.Message):
    __slots__ = ["ids"]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Tokenize(_message.Message):
    __slots__ = ["bos", "special", "text"]
    BOS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    bos: bool
    special: bool
    text: str
    def __init__(self, text: _Optional[str] = ..., bos: bool = ..., special: bool = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ["first", "ids", "live", "logits_hash", "logprob_ids", "logprob_texts", "logprobs", "logprobs_each", "picked", "session_uid", "text"]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    LOGITS_HASH_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_EACH_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TEXTS_FIELD_NUMBER: _ClassVar[int]
    PICKED_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    first: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    live: Live
    logits_hash: _containers.RepeatedScalarFieldContainer[int]
    logprob_ids: _containers.RepeatedScalarFieldContainer[int]
    logprob_texts: _containers.RepeatedScalarFieldContainer[bytes]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    logprobs_each: int
    picked: _containers.RepeatedScalarFieldContainer[int]
    session_uid: int
    text: bytes
    def __init__(self, session_uid: _Optional[int] = ..., first: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., text: _Optional[bytes] = ..., live: _Optional[_Union[Live, _Mapping]] = ..., logits_hash: _Optional[_Iterable[int]] = ..., logprobs_each: _Optional[int] = ..., logprob_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., logprob_texts: _Optional[_Iterable[bytes]] = ..., picked: _Optional[_Iterable[int]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ["accepted", "accepted_at", "cached_tokens", "changed_tokens", "decode_ns", "draft_ns", "drafted", "drafted_at", "expert_hits", "expert_misses", "iterations", "k_used", "lossy", "lossy_tokens", "output_tokens", "prefill_ns", "prompt_tokens", "queue_ns", "restarts", "sample_ns", "unique_experts", "verify_ns"]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_AT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_HITS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_MISSES_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    K_USED_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    LOSSY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_NS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    accepted_at: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: int
    changed_tokens: int
    decode_ns: int
    draft_ns: int
    drafted: int
    drafted_at: _containers.RepeatedScalarFieldContainer[int]
    expert_hits: int
    expert_misses: int
    iterations: int
    k_used: _containers.RepeatedScalarFieldContainer[int]
    lossy: _containers.RepeatedScalarFieldContainer[str]
    lossy_tokens: int
    output_tokens: int
    prefill_ns: int
    prompt_tokens: int
    queue_ns: int
    restarts: int
    sample_ns: int
    unique_experts: int
    verify_ns: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., iterations: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., queue_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., draft_ns: _Optional[int] = ..., verify_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., k_used: _Optional[_Iterable[int]] = ..., drafted_at: _Optional[_Iterable[int]] = ..., accepted_at: _Optional[_Iterable[int]] = ..., unique_experts: _Optional[int] = ..., expert_hits: _Optional[int] = ..., expert_misses: _Optional[int] = ..., lossy: _Optional[_Iterable[str]] = ..., lossy_tokens: _Optional[int] = ..., changed_tokens: _Optional[int] = ..., restarts: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...
