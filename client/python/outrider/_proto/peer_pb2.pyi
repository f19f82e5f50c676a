from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
PEER_STAGE_DEGRADED: PeerStage
PEER_STAGE_DRAINING: PeerStage
PEER_STAGE_ENDED: PeerStage
PEER_STAGE_LOADING: PeerStage
PEER_STAGE_NONE: PeerStage
PEER_STAGE_READY: PeerStage
PEER_STAGE_STOPPING: PeerStage

class PeerCard(_message.Message):
    __slots__ = ["arithmetic", "generation", "layouts", "model", "name", "pid", "protocol", "settings", "state", "version"]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    arithmetic: int
    generation: int
    layouts: _containers.RepeatedCompositeFieldContainer[PeerLayout]
    model: int
    name: str
    pid: int
    protocol: int
    settings: PeerSettings
    state: PeerState
    version: str
    def __init__(self, protocol: _Optional[int] = ..., name: _Optional[str] = ..., pid: _Optional[int] = ..., generation: _Optional[int] = ..., version: _Optional[str] = ..., arithmetic: _Optional[int] = ..., model: _Optional[int] = ..., layouts: _Optional[_Iterable[_Union[PeerLayout, _Mapping]]] = ..., state: _Optional[_Union[PeerState, _Mapping]] = ..., settings: _Optional[_Union[PeerSettings, _Mapping]] = ...) -> None: ...

class PeerChange(_message.Message):
    __slots__ = ["settings", "state"]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    settings: PeerSettings
    state: PeerState
    def __init__(self, state: _Optional[_Union[PeerState, _Mapping]] = ..., settings: _Optional[_Union[PeerSettings, _Mapping]] = ...) -> None: ...

class PeerLayout(_message.Message):
    __slots__ = ["layout", "region"]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    layout: int
    region: str
    def __init__(self, region: _Optional[str] = ..., layout: _Optional[int] = ...) -> None: ...

class PeerNeeds(_message.Message):
    __slots__ = ["device", "device_kv", "device_most", "device_there", "files", "kv", "rest", "there", "weights"]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KV_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MOST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_THERE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    THERE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    device: int
    device_kv: int
    device_most: int
    device_there: int
    files: int
    kv: int
    rest: int
    there: int
    weights: int
    def __init__(self, weights: _Optional[int] = ..., kv: _Optional[int] = ..., rest: _Optional[int] = ..., there: _Optional[int] = ..., files: _Optional[int] = ..., device: _Optional[int] = ..., device_there: _Optional[int] = ..., device_kv: _Optional[int] = ..., device_most: _Optional[int] = ...) -> None: ...

class PeerRegister(_message.Message):
    __slots__ = ["card"]
    CARD_FIELD_NUMBER: _ClassVar[int]
    card: PeerCard
    def __init__(self, card: _Optional[_Union[PeerCard, _Mapping]] = ...) -> None: ...

class PeerRegistered(_message.Message):
    __slots__ = ["card"]
    CARD_FIELD_NUMBER: _ClassVar[int]
    card: PeerCard
    def __init__(self, card: _Optional[_Union[PeerCard, _Mapping]] = ...) -> None: ...

class PeerSettings(_message.Message):
    __slots__ = ["needs", "share", "taps"]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    needs: PeerNeeds
    share: PeerShare
    taps: PeerTaps
    def __init__(self, needs: _Optional[_Union[PeerNeeds, _Mapping]] = ..., taps: _Optional[_Union[PeerTaps, _Mapping]] = ..., share: _Optional[_Union[PeerShare, _Mapping]] = ...) -> None: ...

class PeerShare(_message.Message):
    __slots__ = ["asked", "granted", "refusal"]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    asked: int
    granted: bool
    refusal: str
    def __init__(self, asked: _Optional[int] = ..., granted: bool = ..., refusal: _Optional[str] = ...) -> None: ...

class PeerState(_message.Message):
    __slots__ = ["stage", "text"]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    stage: PeerStage
    text: str
    def __init__(self, stage: _Optional[_Union[PeerStage, str]] = ..., text: _Optional[str] = ...) -> None: ...

class PeerTaps(_message.Message):
    __slots__ = ["layers", "model"]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    model: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., model: _Optional[int] = ...) -> None: ...

class PeerStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__: list[str] = []
