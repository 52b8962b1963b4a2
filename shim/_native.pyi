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

class _Ffi:
    NULL: object
    @overload
    def new(self, kind: Literal["struct spawn_request *"], /) -> SpawnRequest: ...
    @overload
    def new(self, kind: Literal["struct spawn_result *"], /) -> SpawnResult: ...
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

ffi: _Ffi
lib: _Lib
