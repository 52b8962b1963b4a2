from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from shim.wire.proto import mount_pb2 as _mount_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActivateRequest(_message.Message):
    __slots__ = ("name", "mounts", "labels", "temporary")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TEMPORARY_FIELD_NUMBER: _ClassVar[int]
    name: str
    mounts: _containers.RepeatedCompositeFieldContainer[_mount_pb2.Mount]
    labels: _containers.ScalarMap[str, str]
    temporary: bool
    def __init__(self, name: _Optional[str] = ..., mounts: _Optional[_Iterable[_Union[_mount_pb2.Mount, _Mapping[str, object]]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., temporary: _Optional[bool] = ...) -> None: ...

class ActivateResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _mount_pb2.ActivationInfo
    def __init__(self, info: _Optional[_Union[_mount_pb2.ActivationInfo, _Mapping[str, object]]] = ...) -> None: ...

class DeactivateRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _mount_pb2.ActivationInfo
    def __init__(self, info: _Optional[_Union[_mount_pb2.ActivationInfo, _Mapping[str, object]]] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("info", "update_mask")
    INFO_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    info: _mount_pb2.ActivationInfo
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, info: _Optional[_Union[_mount_pb2.ActivationInfo, _Mapping[str, object]]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping[str, object]]] = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _mount_pb2.ActivationInfo
    def __init__(self, info: _Optional[_Union[_mount_pb2.ActivationInfo, _Mapping[str, object]]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("filters",)
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    filters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, filters: _Optional[_Iterable[str]] = ...) -> None: ...

class ListMessage(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _mount_pb2.ActivationInfo
    def __init__(self, info: _Optional[_Union[_mount_pb2.ActivationInfo, _Mapping[str, object]]] = ...) -> None: ...
