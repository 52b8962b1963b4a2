# What shim.kernel.native uses of the compiled module; pointers into C are opaque objects.

from typing import Literal, overload

class SpawnRequest:
    paths: object
    argv: object
    envp: object
    cwd: object
    source: object
    target: object
    fd_count: int
    mask: int
    new_group: int
    new_session: int
    death_signal: int

class SpawnResult:
    pid: int
    pidfd: int
    stage: int

class SyncReport:
    sync_ns: int
    unmount_ns: int
    sync_result: int
    unmount_result: int

class LoopRequest:
    image_fd: int
    name: object
    read_only: int
    direct_io: int
    autoclear: int

class LoopDevice:
    number: int
    fd: int

class ConsoleReport:
    bytes: int
    lost: int
    ending: int

class IntPointer:
    def __getitem__(self, index: int, /) -> int: ...

class _Ffi:
    NULL: object
    @overload
    def new(self, kind: Literal["struct spawn_request *"], /) -> SpawnRequest: ...
    @overload
    def new(self, kind: Literal["struct spawn_result *"], /) -> SpawnResult: ...
    @overload
    def new(self, kind: Literal["struct sync_report *"], /) -> SyncReport: ...
    @overload
    def new(self, kind: Literal["struct loop_request *"], /) -> LoopRequest: ...
    @overload
    def new(self, kind: Literal["struct loop_device *"], /) -> LoopDevice: ...
    @overload
    def new(self, kind: Literal["struct console_report *"], /) -> ConsoleReport: ...
    @overload
    def new(self, kind: Literal["int *"], /) -> IntPointer: ...
    @overload
    def new(self, kind: Literal["char[]"], value: bytes, /) -> object: ...
    @overload
    def new(self, kind: Literal["char *[]"], value: list[object], /) -> object: ...
    @overload
    def new(self, kind: Literal["int[]"], value: list[int], /) -> object: ...

class _Lib:
    def process_spawn(self, request: SpawnRequest, result: SpawnResult, /) -> int: ...
    def process_set_subreaper(self, enabled: int, /) -> int: ...
    def process_set_name(self, name: bytes, /) -> int: ...
    def mount_attach(self, source: object, target: bytes, kind: object, flags: int, data: object, /) -> int: ...
    def mount_detach(self, target: bytes, flags: int, /) -> int: ...
    def mount_open_in_root(self, root_fd: int, path: bytes, opened_fd: IntPointer, /) -> int: ...
    def sync_unmount(self, target: bytes, flags: int, sync_first: int, report: SyncReport, /) -> int: ...
    def loop_attach(self, request: LoopRequest, device: LoopDevice, /) -> int: ...
    def loop_detach(self, fd: int, /) -> int: ...
    def console_drain(
        self, master_fd: int, sink_fd: int, wake_fd: int, timeout_ms: int, report: ConsoleReport, /
    ) -> int: ...
    def watch_open(self, fd: IntPointer, /) -> int: ...
    def watch_add(self, fd: int, path: bytes, /) -> int: ...

ffi: _Ffi
lib: _Lib
