import datetime

from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from shim.wire.proto import mount_pb2 as _mount_pb2
from shim.wire.proto import platform_pb2 as _platform_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id", "bundle_path", "rootfs", "options", "netns_path", "annotations")
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_PATH_FIELD_NUMBER: _ClassVar[int]
    ROOTFS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NETNS_PATH_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    bundle_path: str
    rootfs: _containers.RepeatedCompositeFieldContainer[_mount_pb2.Mount]
    options: _any_pb2.Any
    netns_path: str
    annotations: _containers.ScalarMap[str, str]
    def __init__(self, sandbox_id: _Optional[str] = ..., bundle_path: _Optional[str] = ..., rootfs: _Optional[_Iterable[_Union[_mount_pb2.Mount, _Mapping[str, object]]]] = ..., options: _Optional[_Union[_any_pb2.Any, _Mapping[str, object]]] = ..., netns_path: _Optional[str] = ..., annotations: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateSandboxResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class StartSandboxResponse(_message.Message):
    __slots__ = ("pid", "created_at", "spec")
    PID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    pid: int
    created_at: _timestamp_pb2.Timestamp
    spec: _any_pb2.Any
    def __init__(self, pid: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., spec: _Optional[_Union[_any_pb2.Any, _Mapping[str, object]]] = ...) -> None: ...

class PlatformRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class PlatformResponse(_message.Message):
    __slots__ = ("platform",)
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    platform: _platform_pb2.Platform
    def __init__(self, platform: _Optional[_Union[_platform_pb2.Platform, _Mapping[str, object]]] = ...) -> None: ...

class StopSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id", "timeout_secs")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECS_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    timeout_secs: int
    def __init__(self, sandbox_id: _Optional[str] = ..., timeout_secs: _Optional[int] = ...) -> None: ...

class StopSandboxResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class WaitSandboxResponse(_message.Message):
    __slots__ = ("exit_status", "exited_at")
    EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    EXITED_AT_FIELD_NUMBER: _ClassVar[int]
    exit_status: int
    exited_at: _timestamp_pb2.Timestamp
    def __init__(self, exit_status: _Optional[int] = ..., exited_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ...) -> None: ...

class SandboxStatusRequest(_message.Message):
    __slots__ = ("sandbox_id", "verbose")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    VERBOSE_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    verbose: bool
    def __init__(self, sandbox_id: _Optional[str] = ..., verbose: _Optional[bool] = ...) -> None: ...

class SandboxStatusResponse(_message.Message):
    __slots__ = ("sandbox_id", "pid", "state", "info", "created_at", "exited_at", "extra")
    class InfoEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXITED_AT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    pid: int
    state: str
    info: _containers.ScalarMap[str, str]
    created_at: _timestamp_pb2.Timestamp
    exited_at: _timestamp_pb2.Timestamp
    extra: _any_pb2.Any
    def __init__(self, sandbox_id: _Optional[str] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., info: _Optional[_Mapping[str, str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., exited_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., extra: _Optional[_Union[_any_pb2.Any, _Mapping[str, object]]] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class PingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class ShutdownSandboxResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SandboxMetricsRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class SandboxMetricsResponse(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _platform_pb2.Metric
    def __init__(self, metrics: _Optional[_Union[_platform_pb2.Metric, _Mapping[str, object]]] = ...) -> None: ...

class UpdateSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id", "resources", "annotations", "sandbox", "fields")
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    resources: _any_pb2.Any
    annotations: _containers.ScalarMap[str, str]
    sandbox: _platform_pb2.Sandbox
    fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sandbox_id: _Optional[str] = ..., resources: _Optional[_Union[_any_pb2.Any, _Mapping[str, object]]] = ..., annotations: _Optional[_Mapping[str, str]] = ..., sandbox: _Optional[_Union[_platform_pb2.Sandbox, _Mapping[str, object]]] = ..., fields: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateSandboxResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
