from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CacheDevice(_message.Message):
    __slots__ = ["adopted", "all_pinned", "budget", "busy_ns", "by_cpu", "bytes_loaded", "cpu_expert_ns", "cpu_token_ns", "demanded", "device_expert_ns", "device_token_ns", "drafter_bytes", "evictions", "flight_ns", "free_bytes", "hits", "hybrid", "in_flight", "in_use", "kv_bytes", "limit_bytes", "load_ns", "loads", "memory_bytes", "misses", "name", "pinned", "prefetched", "rescued", "reserve_bytes", "room_bytes", "row_ns", "rows_ns", "self_served", "slot_bytes", "slot_waits", "slots", "streamed", "tau", "verifier_bytes", "verifier_said", "wait_ns", "waits", "window_ns"]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    ALL_PINNED_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_LOADED_FIELD_NUMBER: _ClassVar[int]
    BY_CPU_FIELD_NUMBER: _ClassVar[int]
    CPU_EXPERT_NS_FIELD_NUMBER: _ClassVar[int]
    CPU_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    DEMANDED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_EXPERT_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    FLIGHT_NS_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    HYBRID_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    LOAD_NS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_FIELD_NUMBER: _ClassVar[int]
    RESCUED_FIELD_NUMBER: _ClassVar[int]
    RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_NS_FIELD_NUMBER: _ClassVar[int]
    ROW_NS_FIELD_NUMBER: _ClassVar[int]
    SELF_SERVED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_WAITS_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_SAID_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NS_FIELD_NUMBER: _ClassVar[int]
    adopted: int
    all_pinned: bool
    budget: str
    busy_ns: int
    by_cpu: int
    bytes_loaded: int
    cpu_expert_ns: int
    cpu_token_ns: int
    demanded: int
    device_expert_ns: int
    device_token_ns: int
    drafter_bytes: int
    evictions: int
    flight_ns: int
    free_bytes: int
    hits: int
    hybrid: str
    in_flight: int
    in_use: int
    kv_bytes: int
    limit_bytes: int
    load_ns: int
    loads: int
    memory_bytes: int
    misses: int
    name: str
    pinned: int
    prefetched: int
    rescued: int
    reserve_bytes: int
    room_bytes: int
    row_ns: int
    rows_ns: int
    self_served: int
    slot_bytes: int
    slot_waits: int
    slots: int
    streamed: int
    tau: _containers.RepeatedScalarFieldContainer[int]
    verifier_bytes: int
    verifier_said: bool
    wait_ns: int
    waits: int
    window_ns: int
    def __init__(self, name: _Optional[str] = ..., budget: _Optional[str] = ..., slots: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., in_use: _Optional[int] = ..., pinned: _Optional[int] = ..., all_pinned: bool = ..., adopted: _Optional[int] = ..., hits: _Optional[int] = ..., waits: _Optional[int] = ..., misses: _Optional[int] = ..., self_served: _Optional[int] = ..., rescued: _Optional[int] = ..., wait_ns: _Optional[int] = ..., loads: _Optional[int] = ..., prefetched: _Optional[int] = ..., evictions: _Optional[int] = ..., bytes_loaded: _Optional[int] = ..., load_ns: _Optional[int] = ..., demanded: _Optional[int] = ..., in_flight: _Optional[int] = ..., flight_ns: _Optional[int] = ..., busy_ns: _Optional[int] = ..., slot_waits: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., verifier_bytes: _Optional[int] = ..., verifier_said: bool = ..., reserve_bytes: _Optional[int] = ..., room_bytes: _Optional[int] = ..., drafter_bytes: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., hybrid: _Optional[str] = ..., streamed: _Optional[int] = ..., by_cpu: _Optional[int] = ..., cpu_expert_ns: _Optional[int] = ..., cpu_token_ns: _Optional[int] = ..., device_expert_ns: _Optional[int] = ..., device_token_ns: _Optional[int] = ..., window_ns: _Optional[int] = ..., tau: _Optional[_Iterable[int]] = ..., rows_ns: _Optional[int] = ..., row_ns: _Optional[int] = ...) -> None: ...

class CacheExpert(_message.Message):
    __slots__ = ["expert", "layer", "resident", "uses"]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    expert: int
    layer: int
    resident: bool
    uses: int
    def __init__(self, layer: _Optional[int] = ..., expert: _Optional[int] = ..., uses: _Optional[int] = ..., resident: bool = ...) -> None: ...

class CacheHot(_message.Message):
    __slots__ = ["experts", "uses"]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    experts: _containers.RepeatedCompositeFieldContainer[CacheExpert]
    uses: int
    def __init__(self, experts: _Optional[_Iterable[_Union[CacheExpert, _Mapping]]] = ..., uses: _Optional[int] = ...) -> None: ...

class CacheHotRequest(_message.Message):
    __slots__ = ["n"]
    N_FIELD_NUMBER: _ClassVar[int]
    n: int
    def __init__(self, n: _Optional[int] = ...) -> None: ...

class CacheLayer(_message.Message):
    __slots__ = ["bytes_loaded", "cancelled", "evictions", "hint_quality", "hits", "layer", "loads", "misses", "prefetch_used", "prefetch_wasted", "prefetched", "promoted", "resident", "self_served", "wait_ns"]
    BYTES_LOADED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    HINT_QUALITY_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_USED_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_WASTED_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    SELF_SERVED_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    bytes_loaded: int
    cancelled: int
    evictions: int
    hint_quality: _containers.RepeatedCompositeFieldContainer[HintQuality]
    hits: int
    layer: int
    loads: int
    misses: int
    prefetch_used: int
    prefetch_wasted: int
    prefetched: int
    promoted: int
    resident: int
    self_served: int
    wait_ns: int
    def __init__(self, layer: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., loads: _Optional[int] = ..., evictions: _Optional[int] = ..., resident: _Optional[int] = ..., bytes_loaded: _Optional[int] = ..., wait_ns: _Optional[int] = ..., self_served: _Optional[int] = ..., prefetched: _Optional[int] = ..., prefetch_used: _Optional[int] = ..., prefetch_wasted: _Optional[int] = ..., promoted: _Optional[int] = ..., cancelled: _Optional[int] = ..., hint_quality: _Optional[_Iterable[_Union[HintQuality, _Mapping]]] = ...) -> None: ...

class CacheStats(_message.Message):
    __slots__ = ["activations_lost", "arena_bytes", "budget", "budget_bytes", "budget_min_bytes", "bytes_loaded", "cancelled", "device", "evictions", "file_cached_bytes", "hint_loads", "hint_quality", "hints", "hints_kept", "hints_lost", "hits", "in_use", "kept_bytes", "kv_bytes", "layers", "link", "link_bytes_per_second", "link_reads", "load_failures", "load_ns", "loads", "memory_bytes", "misses", "needs_said", "packed", "pinned", "policy", "prefetch_used", "prefetch_wasted", "prefetched", "promoted", "queue_depth", "reserve_bytes", "resident", "room", "room_bytes", "self_served", "sessions_bytes", "slot_bytes", "slots", "submit_ns", "submit_ns_max", "submits", "table_bytes", "wait_ns", "weights_bytes"]
    ACTIVATIONS_LOST_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    BUDGET_MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_LOADED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    FILE_CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    HINTS_KEPT_FIELD_NUMBER: _ClassVar[int]
    HINTS_LOST_FIELD_NUMBER: _ClassVar[int]
    HINT_LOADS_FIELD_NUMBER: _ClassVar[int]
    HINT_QUALITY_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    LINK_READS_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FAILURES_FIELD_NUMBER: _ClassVar[int]
    LOAD_NS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    NEEDS_SAID_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_USED_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_WASTED_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    SELF_SERVED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_NS_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_NS_MAX_FIELD_NUMBER: _ClassVar[int]
    TABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    activations_lost: int
    arena_bytes: int
    budget: str
    budget_bytes: int
    budget_min_bytes: int
    bytes_loaded: int
    cancelled: int
    device: CacheDevice
    evictions: int
    file_cached_bytes: int
    hint_loads: int
    hint_quality: _containers.RepeatedCompositeFieldContainer[HintQuality]
    hints: int
    hints_kept: int
    hints_lost: int
    hits: int
    in_use: int
    kept_bytes: int
    kv_bytes: int
    layers: _containers.RepeatedCompositeFieldContainer[CacheLayer]
    link: str
    link_bytes_per_second: float
    link_reads: int
    load_failures: int
    load_ns: int
    loads: int
    memory_bytes: int
    misses: int
    needs_said: bool
    packed: int
    pinned: int
    policy: str
    prefetch_used: int
    prefetch_wasted: int
    prefetched: int
    promoted: int
    queue_depth: int
    reserve_bytes: int
    resident: int
    room: str
    room_bytes: int
    self_served: int
    sessions_bytes: int
    slot_bytes: int
    slots: int
    submit_ns: int
    submit_ns_max: int
    submits: int
    table_bytes: int
    wait_ns: int
    weights_bytes: int
    def __init__(self, policy: _Optional[str] = ..., budget_bytes: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., resident: _Optional[int] = ..., pinned: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., loads: _Optional[int] = ..., evictions: _Optional[int] = ..., bytes_loaded: _Optional[int] = ..., hints: _Optional[int] = ..., hint_loads: _Optional[int] = ..., self_served: _Optional[int] = ..., queue_depth: _Optional[int] = ..., link: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[CacheLayer, _Mapping]]] = ..., budget_min_bytes: _Optional[int] = ..., budget: _Optional[str] = ..., in_use: _Optional[int] = ..., arena_bytes: _Optional[int] = ..., file_cached_bytes: _Optional[int] = ..., link_bytes_per_second: _Optional[float] = ..., link_reads: _Optional[int] = ..., load_ns: _Optional[int] = ..., submits: _Optional[int] = ..., submit_ns: _Optional[int] = ..., submit_ns_max: _Optional[int] = ..., load_failures: _Optional[int] = ..., wait_ns: _Optional[int] = ..., prefetched: _Optional[int] = ..., prefetch_used: _Optional[int] = ..., prefetch_wasted: _Optional[int] = ..., promoted: _Optional[int] = ..., cancelled: _Optional[int] = ..., table_bytes: _Optional[int] = ..., hints_kept: _Optional[int] = ..., activations_lost: _Optional[int] = ..., hints_lost: _Optional[int] = ..., hint_quality: _Optional[_Iterable[_Union[HintQuality, _Mapping]]] = ..., packed: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., room_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., sessions_bytes: _Optional[int] = ..., reserve_bytes: _Optional[int] = ..., needs_said: bool = ..., room: _Optional[str] = ..., device: _Optional[_Union[CacheDevice, _Mapping]] = ...) -> None: ...

class CacheStatsRequest(_message.Message):
    __slots__ = ["per_layer"]
    PER_LAYER_FIELD_NUMBER: _ClassVar[int]
    per_layer: bool
    def __init__(self, per_layer: bool = ...) -> None: ...

class DraftTree(_message.Message):
    __slots__ = ["expert_ns", "iteration", "load_ns", "method", "nodes", "row_ns", "session_uid", "token_ns"]
    EXPERT_NS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    LOAD_NS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ROW_NS_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    expert_ns: float
    iteration: int
    load_ns: float
    method: str
    nodes: _containers.RepeatedCompositeFieldContainer[DraftTreeNode]
    row_ns: float
    session_uid: int
    token_ns: float
    def __init__(self, session_uid: _Optional[int] = ..., iteration: _Optional[int] = ..., method: _Optional[str] = ..., token_ns: _Optional[float] = ..., row_ns: _Optional[float] = ..., expert_ns: _Optional[float] = ..., load_ns: _Optional[float] = ..., nodes: _Optional[_Iterable[_Union[DraftTreeNode, _Mapping]]] = ...) -> None: ...

class DraftTreeNode(_message.Message):
    __slots__ = ["chance", "confidence", "cost_ns", "in_flight", "in_slots", "parent", "text", "to_load", "token", "why"]
    CHANCE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    COST_NS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TO_LOAD_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    chance: float
    confidence: float
    cost_ns: float
    in_flight: int
    in_slots: int
    parent: int
    text: bytes
    to_load: int
    token: int
    why: int
    def __init__(self, token: _Optional[int] = ..., text: _Optional[bytes] = ..., parent: _Optional[int] = ..., confidence: _Optional[float] = ..., chance: _Optional[float] = ..., cost_ns: _Optional[float] = ..., in_slots: _Optional[int] = ..., in_flight: _Optional[int] = ..., to_load: _Optional[int] = ..., why: _Optional[int] = ...) -> None: ...

class DraftTreeRequest(_message.Message):
    __slots__ = ["session_uid"]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ...) -> None: ...

class HintQuality(_message.Message):
    __slots__ = ["found", "hinted", "late", "lead_ns", "passes", "source", "used"]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    HINTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    LEAD_NS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    found: int
    hinted: int
    late: int
    lead_ns: int
    passes: int
    source: str
    used: int
    def __init__(self, source: _Optional[str] = ..., passes: _Optional[int] = ..., used: _Optional[int] = ..., found: _Optional[int] = ..., hinted: _Optional[int] = ..., late: _Optional[int] = ..., lead_ns: _Optional[int] = ...) -> None: ...

class Knob(_message.Message):
    __slots__ = ["help", "name", "range", "value"]
    HELP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    help: str
    name: str
    range: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., range: _Optional[str] = ..., help: _Optional[str] = ...) -> None: ...

class KnobChange(_message.Message):
    __slots__ = ["expected", "has_expected", "name", "value"]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    HAS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    expected: str
    has_expected: bool
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., has_expected: bool = ..., expected: _Optional[str] = ...) -> None: ...

class KnobDone(_message.Message):
    __slots__ = ["busy", "drop_in", "message", "results"]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    DROP_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    busy: bool
    drop_in: str
    message: str
    results: _containers.RepeatedCompositeFieldContainer[KnobResult]
    def __init__(self, results: _Optional[_Iterable[_Union[KnobResult, _Mapping]]] = ..., busy: bool = ..., message: _Optional[str] = ..., drop_in: _Optional[str] = ...) -> None: ...

class KnobEvent(_message.Message):
    __slots__ = ["at_start", "for_ns", "has_removed", "has_uid", "name", "new_value", "old_value", "persist", "pid", "program", "reason", "removed", "session_uid", "time_ns", "uid", "what"]
    AT_START_FIELD_NUMBER: _ClassVar[int]
    FOR_NS_FIELD_NUMBER: _ClassVar[int]
    HAS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    HAS_UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_VALUE_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUE_FIELD_NUMBER: _ClassVar[int]
    PERSIST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    at_start: bool
    for_ns: int
    has_removed: bool
    has_uid: bool
    name: str
    new_value: str
    old_value: str
    persist: bool
    pid: int
    program: str
    reason: str
    removed: str
    session_uid: int
    time_ns: int
    uid: int
    what: str
    def __init__(self, time_ns: _Optional[int] = ..., what: _Optional[str] = ..., name: _Optional[str] = ..., old_value: _Optional[str] = ..., new_value: _Optional[str] = ..., session_uid: _Optional[int] = ..., for_ns: _Optional[int] = ..., persist: bool = ..., has_uid: bool = ..., uid: _Optional[int] = ..., pid: _Optional[int] = ..., program: _Optional[str] = ..., reason: _Optional[str] = ..., at_start: bool = ..., has_removed: bool = ..., removed: _Optional[str] = ...) -> None: ...

class KnobHistory(_message.Message):
    __slots__ = ["events", "process"]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[KnobEvent]
    process: str
    def __init__(self, process: _Optional[str] = ..., events: _Optional[_Iterable[_Union[KnobEvent, _Mapping]]] = ...) -> None: ...

class KnobHistoryRequest(_message.Message):
    __slots__ = ["count_max"]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    count_max: int
    def __init__(self, count_max: _Optional[int] = ...) -> None: ...

class KnobInfo(_message.Message):
    __slots__ = ["choices", "fallback", "help", "live", "means", "name", "next_start", "next_start_known", "on_command_line", "persisted", "range", "reverts_in_ns", "reverts_to", "scope", "started", "stored", "type", "unit", "value"]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    MEANS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_KNOWN_FIELD_NUMBER: _ClassVar[int]
    ON_COMMAND_LINE_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    REVERTS_IN_NS_FIELD_NUMBER: _ClassVar[int]
    REVERTS_TO_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedScalarFieldContainer[str]
    fallback: str
    help: str
    live: bool
    means: str
    name: str
    next_start: str
    next_start_known: bool
    on_command_line: bool
    persisted: bool
    range: str
    reverts_in_ns: int
    reverts_to: str
    scope: str
    started: str
    stored: str
    type: str
    unit: str
    value: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., unit: _Optional[str] = ..., range: _Optional[str] = ..., fallback: _Optional[str] = ..., help: _Optional[str] = ..., scope: _Optional[str] = ..., live: bool = ..., value: _Optional[str] = ..., started: _Optional[str] = ..., choices: _Optional[_Iterable[str]] = ..., reverts_in_ns: _Optional[int] = ..., reverts_to: _Optional[str] = ..., persisted: bool = ..., on_command_line: bool = ..., next_start: _Optional[str] = ..., next_start_known: bool = ..., means: _Optional[str] = ..., stored: _Optional[str] = ...) -> None: ...

class KnobList(_message.Message):
    __slots__ = ["session_uid"]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ...) -> None: ...

class KnobResult(_message.Message):
    __slots__ = ["at_start", "has_removed", "has_stays_for", "name", "new_value", "note", "old_value", "removed", "stays_for"]
    AT_START_FIELD_NUMBER: _ClassVar[int]
    HAS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    HAS_STAYS_FOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_VALUE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    STAYS_FOR_FIELD_NUMBER: _ClassVar[int]
    at_start: bool
    has_removed: bool
    has_stays_for: bool
    name: str
    new_value: str
    note: str
    old_value: str
    removed: str
    stays_for: str
    def __init__(self, name: _Optional[str] = ..., old_value: _Optional[str] = ..., new_value: _Optional[str] = ..., at_start: bool = ..., note: _Optional[str] = ..., has_removed: bool = ..., removed: _Optional[str] = ..., has_stays_for: bool = ..., stays_for: _Optional[str] = ...) -> None: ...

class KnobSet(_message.Message):
    __slots__ = ["at_start", "changes", "for_ns", "persist", "program", "reservation", "reset", "session_uid", "step"]
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__: list[str] = []
    APPLY: KnobSet.Step
    AT_START_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    COMMIT: KnobSet.Step
    FOR_NS_FIELD_NUMBER: _ClassVar[int]
    NOW: KnobSet.Step
    PERSIST_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    RELEASE: KnobSet.Step
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    RESERVE: KnobSet.Step
    RESET_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    at_start: bool
    changes: _containers.RepeatedCompositeFieldContainer[KnobChange]
    for_ns: int
    persist: bool
    program: str
    reservation: int
    reset: bool
    session_uid: int
    step: KnobSet.Step
    def __init__(self, step: _Optional[_Union[KnobSet.Step, str]] = ..., changes: _Optional[_Iterable[_Union[KnobChange, _Mapping]]] = ..., reset: bool = ..., for_ns: _Optional[int] = ..., persist: bool = ..., at_start: bool = ..., session_uid: _Optional[int] = ..., reservation: _Optional[int] = ..., program: _Optional[str] = ...) -> None: ...

class Knobs(_message.Message):
    __slots__ = ["changes", "drop_in", "knobs", "process"]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DROP_IN_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    changes: int
    drop_in: str
    knobs: _containers.RepeatedCompositeFieldContainer[KnobInfo]
    process: str
    def __init__(self, process: _Optional[str] = ..., knobs: _Optional[_Iterable[_Union[KnobInfo, _Mapping]]] = ..., drop_in: _Optional[str] = ..., changes: _Optional[int] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ["arch", "eog", "kernels", "kv_type", "n_context", "n_experts", "n_layers", "n_vocab", "path", "threads"]
    ARCH_FIELD_NUMBER: _ClassVar[int]
    EOG_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    KV_TYPE_FIELD_NUMBER: _ClassVar[int]
    N_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    N_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    N_LAYERS_FIELD_NUMBER: _ClassVar[int]
    N_VOCAB_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    arch: str
    eog: _containers.RepeatedScalarFieldContainer[int]
    kernels: str
    kv_type: str
    n_context: int
    n_experts: int
    n_layers: int
    n_vocab: int
    path: str
    threads: int
    def __init__(self, path: _Optional[str] = ..., arch: _Optional[str] = ..., n_context: _Optional[int] = ..., n_vocab: _Optional[int] = ..., n_layers: _Optional[int] = ..., n_experts: _Optional[int] = ..., kernels: _Optional[str] = ..., threads: _Optional[int] = ..., eog: _Optional[_Iterable[int]] = ..., kv_type: _Optional[str] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__: list[str] = []
    def __init__(self) -> None: ...

class PolicyDecision(_message.Message):
    __slots__ = ["k_new", "k_old", "k_then", "number", "phase", "reason", "session_uid", "time_ns", "trial_n", "utility"]
    K_NEW_FIELD_NUMBER: _ClassVar[int]
    K_OLD_FIELD_NUMBER: _ClassVar[int]
    K_THEN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    TRIAL_N_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    k_new: int
    k_old: int
    k_then: int
    number: int
    phase: str
    reason: str
    session_uid: int
    time_ns: int
    trial_n: int
    utility: float
    def __init__(self, number: _Optional[int] = ..., session_uid: _Optional[int] = ..., k_old: _Optional[int] = ..., k_new: _Optional[int] = ..., phase: _Optional[str] = ..., reason: _Optional[str] = ..., time_ns: _Optional[int] = ..., utility: _Optional[float] = ..., trial_n: _Optional[int] = ..., k_then: _Optional[int] = ...) -> None: ...

class PolicyDecisions(_message.Message):
    __slots__ = ["decisions", "next"]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[PolicyDecision]
    next: int
    def __init__(self, decisions: _Optional[_Iterable[_Union[PolicyDecision, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class PolicyExplain(_message.Message):
    __slots__ = ["session_uid"]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ...) -> None: ...

class PolicyExplanation(_message.Message):
    __slots__ = ["age_ns", "decisions", "figures", "k", "k_fixed", "k_last", "k_then", "options", "options_are", "phase", "policy", "positions", "session_uid", "tells_doubt", "tells_drafted", "trial_n", "utility", "words"]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    K_FIXED_FIELD_NUMBER: _ClassVar[int]
    K_LAST_FIELD_NUMBER: _ClassVar[int]
    K_THEN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_ARE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    TELLS_DOUBT_FIELD_NUMBER: _ClassVar[int]
    TELLS_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    TRIAL_N_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    age_ns: int
    decisions: _containers.RepeatedCompositeFieldContainer[PolicyDecision]
    figures: _containers.RepeatedCompositeFieldContainer[PolicyFigure]
    k: int
    k_fixed: bool
    k_last: int
    k_then: int
    options: _containers.RepeatedCompositeFieldContainer[PolicyOption]
    options_are: str
    phase: str
    policy: str
    positions: _containers.RepeatedCompositeFieldContainer[PolicyPosition]
    session_uid: int
    tells_doubt: bool
    tells_drafted: bool
    trial_n: int
    utility: float
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session_uid: _Optional[int] = ..., policy: _Optional[str] = ..., phase: _Optional[str] = ..., k: _Optional[int] = ..., k_then: _Optional[int] = ..., trial_n: _Optional[int] = ..., k_fixed: bool = ..., utility: _Optional[float] = ..., age_ns: _Optional[int] = ..., words: _Optional[_Iterable[str]] = ..., figures: _Optional[_Iterable[_Union[PolicyFigure, _Mapping]]] = ..., options: _Optional[_Iterable[_Union[PolicyOption, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[PolicyPosition, _Mapping]]] = ..., decisions: _Optional[_Iterable[_Union[PolicyDecision, _Mapping]]] = ..., options_are: _Optional[str] = ..., tells_drafted: bool = ..., tells_doubt: bool = ..., k_last: _Optional[int] = ...) -> None: ...

class PolicyFigure(_message.Message):
    __slots__ = ["name", "unit", "value"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    value: float
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class PolicyGet(_message.Message):
    __slots__: list[str] = []
    def __init__(self) -> None: ...

class PolicyOption(_message.Message):
    __slots__ = ["brings", "costs", "doubt", "drafted", "k", "note", "time_ms", "tokens", "tokens_per_s", "utility", "weighed"]
    BRINGS_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    WEIGHED_FIELD_NUMBER: _ClassVar[int]
    brings: float
    costs: float
    doubt: float
    drafted: float
    k: int
    note: str
    time_ms: float
    tokens: float
    tokens_per_s: float
    utility: float
    weighed: bool
    def __init__(self, k: _Optional[int] = ..., drafted: _Optional[float] = ..., tokens: _Optional[float] = ..., time_ms: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., utility: _Optional[float] = ..., doubt: _Optional[float] = ..., weighed: bool = ..., brings: _Optional[float] = ..., costs: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class PolicyPosition(_message.Message):
    __slots__ = ["accepted", "cut", "reached"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    accepted: float
    cut: float
    reached: float
    def __init__(self, reached: _Optional[float] = ..., accepted: _Optional[float] = ..., cut: _Optional[float] = ...) -> None: ...

class PolicyRecord(_message.Message):
    __slots__ = ["accepted", "base_us", "batch_sessions", "batch_tokens", "draft_us", "drafted", "emitted", "etr", "expert_bytes", "expert_hits", "expert_misses", "foreseen", "foreseen_right", "iteration", "iteration_us", "k", "k_fixed", "k_next", "missing", "missing_tokens", "n_context", "number", "phase", "prefill_tokens", "sample_us", "session_uid", "time_ns", "unique_experts", "utility", "verify_us"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BASE_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    ETR_FIELD_NUMBER: _ClassVar[int]
    EXPERT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPERT_HITS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_MISSES_FIELD_NUMBER: _ClassVar[int]
    FORESEEN_FIELD_NUMBER: _ClassVar[int]
    FORESEEN_RIGHT_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    ITERATION_US_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    K_FIXED_FIELD_NUMBER: _ClassVar[int]
    K_NEXT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MISSING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    N_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    base_us: float
    batch_sessions: int
    batch_tokens: int
    draft_us: int
    drafted: int
    emitted: int
    etr: float
    expert_bytes: int
    expert_hits: int
    expert_misses: int
    foreseen: int
    foreseen_right: int
    iteration: int
    iteration_us: int
    k: int
    k_fixed: bool
    k_next: int
    missing: int
    missing_tokens: int
    n_context: int
    number: int
    phase: str
    prefill_tokens: int
    sample_us: int
    session_uid: int
    time_ns: int
    unique_experts: int
    utility: float
    verify_us: int
    def __init__(self, number: _Optional[int] = ..., time_ns: _Optional[int] = ..., session_uid: _Optional[int] = ..., iteration: _Optional[int] = ..., n_context: _Optional[int] = ..., k: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., emitted: _Optional[int] = ..., phase: _Optional[str] = ..., k_next: _Optional[int] = ..., k_fixed: bool = ..., batch_sessions: _Optional[int] = ..., batch_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., unique_experts: _Optional[int] = ..., expert_hits: _Optional[int] = ..., expert_misses: _Optional[int] = ..., expert_bytes: _Optional[int] = ..., draft_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., iteration_us: _Optional[int] = ..., base_us: _Optional[float] = ..., utility: _Optional[float] = ..., etr: _Optional[float] = ..., foreseen: _Optional[int] = ..., foreseen_right: _Optional[int] = ..., missing: _Optional[int] = ..., missing_tokens: _Optional[int] = ...) -> None: ...

class PolicyRecords(_message.Message):
    __slots__ = ["lost", "lost_behind", "path", "records", "records_lost"]
    LOST_BEHIND_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_LOST_FIELD_NUMBER: _ClassVar[int]
    lost: int
    lost_behind: int
    path: str
    records: _containers.RepeatedCompositeFieldContainer[PolicyRecord]
    records_lost: int
    def __init__(self, records: _Optional[_Iterable[_Union[PolicyRecord, _Mapping]]] = ..., path: _Optional[str] = ..., lost: _Optional[int] = ..., records_lost: _Optional[int] = ..., lost_behind: _Optional[int] = ...) -> None: ...

class PolicyRecordsRequest(_message.Message):
    __slots__ = ["max", "session_uid"]
    MAX_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    max: int
    session_uid: int
    def __init__(self, session_uid: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class PolicySession(_message.Message):
    __slots__ = ["acceptance", "base_age", "base_ms", "drafted", "etr", "iteration_ms", "iterations", "k", "phase", "policy", "session_uid", "slot", "utility"]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    BASE_AGE_FIELD_NUMBER: _ClassVar[int]
    BASE_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ETR_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_MS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    UTILITY_FIELD_NUMBER: _ClassVar[int]
    acceptance: float
    base_age: int
    base_ms: float
    drafted: float
    etr: float
    iteration_ms: float
    iterations: int
    k: int
    phase: str
    policy: str
    session_uid: int
    slot: int
    utility: float
    def __init__(self, session_uid: _Optional[int] = ..., slot: _Optional[int] = ..., k: _Optional[int] = ..., utility: _Optional[float] = ..., acceptance: _Optional[float] = ..., etr: _Optional[float] = ..., phase: _Optional[str] = ..., iterations: _Optional[int] = ..., base_ms: _Optional[float] = ..., iteration_ms: _Optional[float] = ..., policy: _Optional[str] = ..., drafted: _Optional[float] = ..., base_age: _Optional[int] = ...) -> None: ...

class PolicyState(_message.Message):
    __slots__ = ["decisions", "knobs", "policy", "records", "records_lost", "sessions"]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_LOST_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: int
    knobs: _containers.RepeatedCompositeFieldContainer[Knob]
    policy: str
    records: int
    records_lost: int
    sessions: _containers.RepeatedCompositeFieldContainer[PolicySession]
    def __init__(self, policy: _Optional[str] = ..., knobs: _Optional[_Iterable[_Union[Knob, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[PolicySession, _Mapping]]] = ..., records: _Optional[int] = ..., records_lost: _Optional[int] = ..., decisions: _Optional[int] = ...) -> None: ...

class PolicyWatch(_message.Message):
    __slots__ = ["after"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ["accepted", "age_ns", "class_name", "draft_method", "drafted", "iterations", "k", "max_tokens", "output_tokens", "priority", "prompt_tokens", "slot", "state", "tokens_per_s", "uid"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_METHOD_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    age_ns: int
    class_name: str
    draft_method: str
    drafted: int
    iterations: int
    k: int
    max_tokens: int
    output_tokens: int
    priority: int
    prompt_tokens: int
    slot: int
    state: str
    tokens_per_s: float
    uid: int
    def __init__(self, uid: _Optional[int] = ..., state: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., k: _Optional[int] = ..., draft_method: _Optional[str] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., iterations: _Optional[int] = ..., age_ns: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., slot: _Optional[int] = ..., class_name: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class SessionSleep(_message.Message):
    __slots__ = ["uid", "wake"]
    UID_FIELD_NUMBER: _ClassVar[int]
    WAKE_FIELD_NUMBER: _ClassVar[int]
    uid: int
    wake: bool
    def __init__(self, uid: _Optional[int] = ..., wake: bool = ...) -> None: ...

class Sessions(_message.Message):
    __slots__ = ["iterations_total", "output_tokens_total", "queue_max", "queued", "sessions"]
    ITERATIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MAX_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    iterations_total: int
    output_tokens_total: int
    queue_max: int
    queued: int
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., queued: _Optional[int] = ..., queue_max: _Optional[int] = ..., output_tokens_total: _Optional[int] = ..., iterations_total: _Optional[int] = ...) -> None: ...

class SessionsRequest(_message.Message):
    __slots__: list[str] = []
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ["detail", "generation", "name", "pid", "rss_bytes", "state", "uptime_ns", "version"]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    detail: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    name: str
    pid: int
    rss_bytes: int
    state: str
    uptime_ns: int
    version: str
    def __init__(self, name: _Optional[str] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., generation: _Optional[int] = ..., uptime_ns: _Optional[int] = ..., version: _Optional[str] = ..., rss_bytes: _Optional[int] = ..., detail: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__: list[str] = []
    def __init__(self) -> None: ...

class Tolerance(_message.Message):
    __slots__ = ["points"]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[TolerancePoint]
    def __init__(self, points: _Optional[_Iterable[_Union[TolerancePoint, _Mapping]]] = ...) -> None: ...

class TolerancePoint(_message.Message):
    __slots__ = ["context", "delta", "drafted", "emitted", "evidence", "gamma", "measured", "pass_ms", "passes", "predicted", "sessions", "tau"]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    PASS_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    context: float
    delta: float
    drafted: float
    emitted: float
    evidence: float
    gamma: int
    measured: float
    pass_ms: float
    passes: float
    predicted: float
    sessions: int
    tau: float
    def __init__(self, sessions: _Optional[int] = ..., gamma: _Optional[int] = ..., tau: _Optional[float] = ..., pass_ms: _Optional[float] = ..., evidence: _Optional[float] = ..., passes: _Optional[float] = ..., context: _Optional[float] = ..., drafted: _Optional[float] = ..., emitted: _Optional[float] = ..., delta: _Optional[float] = ..., predicted: _Optional[float] = ..., measured: _Optional[float] = ...) -> None: ...

class ToleranceRequest(_message.Message):
    __slots__: list[str] = []
    def __init__(self) -> None: ...

class Trace(_message.Message):
    __slots__ = ["lost", "more", "next", "pid", "spans"]
    LOST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    lost: int
    more: bool
    next: int
    pid: int
    spans: _containers.RepeatedCompositeFieldContainer[TraceSpan]
    def __init__(self, pid: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[TraceSpan, _Mapping]]] = ..., next: _Optional[int] = ..., more: bool = ..., lost: _Optional[int] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ["next", "on_ns"]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    ON_NS_FIELD_NUMBER: _ClassVar[int]
    next: int
    on_ns: int
    def __init__(self, on_ns: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class TraceSpan(_message.Message):
    __slots__ = ["kind", "lane", "length_ns", "session", "start_ns", "value0", "value1"]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_NS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    VALUE0_FIELD_NUMBER: _ClassVar[int]
    VALUE1_FIELD_NUMBER: _ClassVar[int]
    kind: int
    lane: int
    length_ns: int
    session: int
    start_ns: int
    value0: int
    value1: int
    def __init__(self, start_ns: _Optional[int] = ..., length_ns: _Optional[int] = ..., session: _Optional[int] = ..., kind: _Optional[int] = ..., lane: _Optional[int] = ..., value0: _Optional[int] = ..., value1: _Optional[int] = ...) -> None: ...
