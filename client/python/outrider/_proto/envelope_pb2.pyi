from outrider._proto import client_pb2 as _client_pb2
from outrider._proto import admin_pb2 as _admin_pb2
from outrider._proto import peer_pb2 as _peer_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ["accepted", "cache_hot", "cache_hot_request", "cache_stats", "cache_stats_request", "cancel", "credit", "done", "draft_tree", "draft_tree_request", "failure", "generate", "knob_done", "knob_history", "knob_history_request", "knob_list", "knob_set", "knobs", "model", "model_request", "peer_change", "peer_register", "peer_registered", "policy_decisions", "policy_explain", "policy_explanation", "policy_get", "policy_records", "policy_records_request", "policy_state", "policy_watch", "request_id", "resume", "session_sleep", "sessions", "sessions_request", "status", "status_request", "text", "text_request", "tokens", "tolerance", "tolerance_request", "trace", "trace_request", "version"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CACHE_HOT_FIELD_NUMBER: _ClassVar[int]
    CACHE_HOT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CACHE_STATS_FIELD_NUMBER: _ClassVar[int]
    CACHE_STATS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TREE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TREE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    KNOB_DONE_FIELD_NUMBER: _ClassVar[int]
    KNOB_HISTORY_FIELD_NUMBER: _ClassVar[int]
    KNOB_HISTORY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    KNOB_LIST_FIELD_NUMBER: _ClassVar[int]
    KNOB_SET_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PEER_CHANGE_FIELD_NUMBER: _ClassVar[int]
    PEER_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    PEER_REGISTER_FIELD_NUMBER: _ClassVar[int]
    POLICY_DECISIONS_FIELD_NUMBER: _ClassVar[int]
    POLICY_EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    POLICY_EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    POLICY_GET_FIELD_NUMBER: _ClassVar[int]
    POLICY_RECORDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_RECORDS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    POLICY_STATE_FIELD_NUMBER: _ClassVar[int]
    POLICY_WATCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_SLEEP_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    TRACE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    accepted: _client_pb2.Accepted
    cache_hot: _admin_pb2.CacheHot
    cache_hot_request: _admin_pb2.CacheHotRequest
    cache_stats: _admin_pb2.CacheStats
    cache_stats_request: _admin_pb2.CacheStatsRequest
    cancel: _client_pb2.Cancel
    credit: _client_pb2.Credit
    done: _client_pb2.Done
    draft_tree: _admin_pb2.DraftTree
    draft_tree_request: _admin_pb2.DraftTreeRequest
    failure: Failure
    generate: _client_pb2.Generate
    knob_done: _admin_pb2.KnobDone
    knob_history: _admin_pb2.KnobHistory
    knob_history_request: _admin_pb2.KnobHistoryRequest
    knob_list: _admin_pb2.KnobList
    knob_set: _admin_pb2.KnobSet
    knobs: _admin_pb2.Knobs
    model: _admin_pb2.Model
    model_request: _admin_pb2.ModelRequest
    peer_change: _peer_pb2.PeerChange
    peer_register: _peer_pb2.PeerRegister
    peer_registered: _peer_pb2.PeerRegistered
    policy_decisions: _admin_pb2.PolicyDecisions
    policy_explain: _admin_pb2.PolicyExplain
    policy_explanation: _admin_pb2.PolicyExplanation
    policy_get: _admin_pb2.PolicyGet
    policy_records: _admin_pb2.PolicyRecords
    policy_records_request: _admin_pb2.PolicyRecordsRequest
    policy_state: _admin_pb2.PolicyState
    policy_watch: _admin_pb2.PolicyWatch
    request_id: int
    resume: _client_pb2.Resume
    session_sleep: _admin_pb2.SessionSleep
    sessions: _admin_pb2.Sessions
    sessions_request: _admin_pb2.SessionsRequest
    status: _admin_pb2.Status
    status_request: _admin_pb2.StatusRequest
    text: _client_pb2.Text
    text_request: _client_pb2.TextRequest
    tokens: _client_pb2.Tokens
    tolerance: _admin_pb2.Tolerance
    tolerance_request: _admin_pb2.ToleranceRequest
    trace: _admin_pb2.Trace
    trace_request: _admin_pb2.TraceRequest
    version: int
    def __init__(self, version: _Optional[int] = ..., request_id: _Optional[int] = ..., generate: _Optional[_Union[_client_pb2.Generate, _Mapping]] = ..., resume: _Optional[_Union[_client_pb2.Resume, _Mapping]] = ..., credit: _Optional[_Union[_client_pb2.Credit, _Mapping]] = ..., cancel: _Optional[_Union[_client_pb2.Cancel, _Mapping]] = ..., text_request: _Optional[_Union[_client_pb2.TextRequest, _Mapping]] = ..., accepted: _Optional[_Union[_client_pb2.Accepted, _Mapping]] = ..., tokens: _Optional[_Union[_client_pb2.Tokens, _Mapping]] = ..., done: _Optional[_Union[_client_pb2.Done, _Mapping]] = ..., text: _Optional[_Union[_client_pb2.Text, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., status_request: _Optional[_Union[_admin_pb2.StatusRequest, _Mapping]] = ..., status: _Optional[_Union[_admin_pb2.Status, _Mapping]] = ..., sessions_request: _Optional[_Union[_admin_pb2.SessionsRequest, _Mapping]] = ..., sessions: _Optional[_Union[_admin_pb2.Sessions, _Mapping]] = ..., cache_stats_request: _Optional[_Union[_admin_pb2.CacheStatsRequest, _Mapping]] = ..., cache_stats: _Optional[_Union[_admin_pb2.CacheStats, _Mapping]] = ..., cache_hot_request: _Optional[_Union[_admin_pb2.CacheHotRequest, _Mapping]] = ..., cache_hot: _Optional[_Union[_admin_pb2.CacheHot, _Mapping]] = ..., policy_get: _Optional[_Union[_admin_pb2.PolicyGet, _Mapping]] = ..., policy_state: _Optional[_Union[_admin_pb2.PolicyState, _Mapping]] = ..., policy_watch: _Optional[_Union[_admin_pb2.PolicyWatch, _Mapping]] = ..., policy_decisions: _Optional[_Union[_admin_pb2.PolicyDecisions, _Mapping]] = ..., model_request: _Optional[_Union[_admin_pb2.ModelRequest, _Mapping]] = ..., model: _Optional[_Union[_admin_pb2.Model, _Mapping]] = ..., knob_list: _Optional[_Union[_admin_pb2.KnobList, _Mapping]] = ..., knobs: _Optional[_Union[_admin_pb2.Knobs, _Mapping]] = ..., knob_set: _Optional[_Union[_admin_pb2.KnobSet, _Mapping]] = ..., knob_done: _Optional[_Union[_admin_pb2.KnobDone, _Mapping]] = ..., knob_history_request: _Optional[_Union[_admin_pb2.KnobHistoryRequest, _Mapping]] = ..., knob_history: _Optional[_Union[_admin_pb2.KnobHistory, _Mapping]] = ..., trace_request: _Optional[_Union[_admin_pb2.TraceRequest, _Mapping]] = ..., trace: _Optional[_Union[_admin_pb2.Trace, _Mapping]] = ..., policy_records_request: _Optional[_Union[_admin_pb2.PolicyRecordsRequest, _Mapping]] = ..., policy_records: _Optional[_Union[_admin_pb2.PolicyRecords, _Mapping]] = ..., policy_explain: _Optional[_Union[_admin_pb2.PolicyExplain, _Mapping]] = ..., policy_explanation: _Optional[_Union[_admin_pb2.PolicyExplanation, _Mapping]] = ..., draft_tree_request: _Optional[_Union[_admin_pb2.DraftTreeRequest, _Mapping]] = ..., draft_tree: _Optional[_Union[_admin_pb2.DraftTree, _Mapping]] = ..., tolerance_request: _Optional[_Union[_admin_pb2.ToleranceRequest, _Mapping]] = ..., tolerance: _Optional[_Union[_admin_pb2.Tolerance, _Mapping]] = ..., peer_register: _Optional[_Union[_peer_pb2.PeerRegister, _Mapping]] = ..., peer_registered: _Optional[_Union[_peer_pb2.PeerRegistered, _Mapping]] = ..., peer_change: _Optional[_Union[_peer_pb2.PeerChange, _Mapping]] = ..., session_sleep: _Optional[_Union[_admin_pb2.SessionSleep, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ["code", "message", "retry_ms", "session_uid"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_UID_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retry_ms: int
    session_uid: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., session_uid: _Optional[int] = ..., retry_ms: _Optional[int] = ...) -> None: ...
