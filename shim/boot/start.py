"""The `start` command: bind the socket, fork the server, answer, end (protocol.md 2.7, design section 9).

The server is a fork of this process, so the caller does not wait for a second interpreter, and what only the server
needs (Trio and all that stands on it) is imported after the fork, beside the answer.  Nothing here starts a thread or
a loop, since a fork keeps only one of them.

Invariants: the socket listens before the answer is given; the server begins only when the answer was delivered and
undoes itself when this process ends before that, whatever ended it; a failure leaves no socket, file or process;
standard output carries the answer and nothing else, standard error nothing at all when all is well, for the caller
reads both as one.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final, NoReturn

from shim.boot import bootstrap, detach, sockets
from shim.boot.stdio import read_stdin, write_stdout
from shim.errors import InvalidArgument, NotFound, ShimError
from shim.kernel import cgroups, procfs
from shim.kernel.files import write_atomic
from shim.model import grouping
from shim.wire import typeurl
from shim.wire.proto.runc_options_pb2 import Options

if TYPE_CHECKING:
    from google.protobuf.any_pb2 import Any

    from shim.boot.bootstrap import StartInput
    from shim.boot.caller import Caller
    from shim.boot.flags import Flags
    from shim.boot.sockets import BoundSocket

ADDRESS_FILE: Final = "address"
SOCKET_DIR_LINK: Final = "s"
_CONFIG: Final = "config.json"
_ADDRESS_MODE: Final = 0o644
_MAX_CONFIG_BYTES: Final = 64 * 1024 * 1024
_LEAVE_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_GO: Final = b"g"
"""What the server reads from the gate when the answer is out; EOF instead means that it is not wanted."""


def run_start(flags: Flags, caller: Caller) -> None:
    """Do all of it in the bundle (the working directory) and return when the answer is written.

    The server's oom score is relative to that of the `caller`, for whom it is all undone when it goes away too early.
    Raises ShimError or OSError, and then nothing is left behind.
    """
    flags.check_identity()
    told = bootstrap.read_input(read_stdin(), flags, os.environ)
    bundle = os.getcwd()
    group = grouping.group_id(read_annotations(bundle), flags.id)
    if told.socket_dir and not told.socket_dir.startswith("/"):
        raise InvalidArgument(f"socket_dir {told.socket_dir!r} must be absolute")
    directory = told.socket_dir.rstrip("/") or grouping.DEFAULT_SOCKET_DIR
    path = grouping.socket_path(directory, told.grpc_address, flags.namespace, group)
    cgroup = shim_cgroup(told.options)
    bound = sockets.bind_socket(path)
    if bound is None:
        _leave_traces(bundle, told, grouping.SCHEME + path, [])
        write_stdout(bootstrap.answer(told.caller, grouping.SCHEME + path))
        return
    try:
        _launch(bound, bundle, told, flags, cgroup, caller)
    except BaseException:
        bound.remove()
        raise
    finally:
        bound.listener.close()


def read_annotations(bundle: str) -> dict[str, str]:
    """The annotations of the bundle's spec; none where there is no spec, as for a sandbox (protocol.md 4)."""
    try:
        with open(os.path.join(bundle, _CONFIG), "rb") as stream:
            data = stream.read(_MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return {}
    if len(data) > _MAX_CONFIG_BYTES:
        raise InvalidArgument(f"{_CONFIG} holds more than {_MAX_CONFIG_BYTES} bytes")
    return grouping.spec_annotations(data)


def shim_cgroup(options: Any | None) -> str:
    """The cgroup that the options ask for, empty for none; InvalidArgument for options of an unknown type.

    Only options in TOML, which are rare, are decoded in full here: that takes the converters, which nothing else in
    this command needs.
    """
    if options is None:
        return ""
    if typeurl.is_a(options, Options):
        return typeurl.unpack(options, Options).shim_cgroup
    from shim.task.options import decode_options

    return decode_options(options).shim_cgroup


def _launch(bound: BoundSocket, bundle: str, told: StartInput, flags: Flags, cgroup: str, caller: Caller) -> None:
    """Fork the server, set it up from outside, answer, and let it go on; on failure it is killed and reaped."""
    gate_reader, gate_writer = os.pipe2(os.O_CLOEXEC)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _LEAVE_SIGNALS)  # until the server can remove its socket
    server = os.fork()  # noqa: TID251 - the server is a fork of this command
    if server == 0:
        _serve(bound, bundle, told, flags, (gate_reader, gate_writer))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    traces: list[str] = []
    try:
        os.close(gate_reader)
        _adjust_oom_score(server, caller.pid)
        if cgroup:
            _enter_cgroup(server, cgroup)
        _leave_traces(bundle, told, bound.address, traces)
        with caller.waiting():
            write_stdout(bootstrap.answer(told.caller, bound.address))
        _let_go(gate_writer)
    except BaseException:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)  # noqa: TID251 - the only child, and no reaper here
        for trace in traces:
            os.unlink(trace)
        raise
    finally:
        os.close(gate_writer)


def _serve(bound: BoundSocket, bundle: str, told: StartInput, flags: Flags, gate: tuple[int, int]) -> NoReturn:
    """The forked child: never returns, so that nothing of the start command runs twice."""
    try:

        def leave(signum: int, frame: object) -> None:
            del signum, frame
            bound.remove()
            os._exit(0)  # noqa: TID251 - nothing has begun

        for number in _LEAVE_SIGNALS:  # until the loop takes them over
            signal.signal(number, leave)
        reader, writer = gate
        os.close(writer)  # else its end would never be seen
        detach.detach(keep={bound.listener.fileno(), reader})
        # The server's program begins here: everything it will ever use is imported before the first request is read.
        from shim.boot.serve import serve_forked

        serve_forked(
            bound,
            reader,
            _GO,
            namespace=flags.namespace,
            id_=flags.id,
            address=told.grpc_address,
            ttrpc_address=told.ttrpc_address,
            debug=told.debug,
            bundle=bundle,
        )
    except BaseException as error:
        from shim.boot.logs import report

        report(bundle, "shim cannot serve", error)
    finally:
        bound.remove()
        os._exit(1)  # noqa: TID251 - a fork must not unwind into what its parent is doing


def _adjust_oom_score(server: int, caller: int) -> None:
    """One above the caller, so that the kernel takes shims before the daemon; as far as we are allowed to (V4)."""
    try:
        procfs.set_oom_score_adj(server, procfs.oom_score_adj(caller) + 1)
    except (PermissionError, ProcessLookupError):
        return


def _enter_cgroup(server: int, cgroup: str) -> None:
    try:
        cgroups.move(server, cgroup)
    except NotFound as error:
        raise NotFound(f"shim cgroup {cgroup} does not exist") from error
    except OSError as error:
        raise ShimError(f"cannot move the shim into cgroup {cgroup}: {error}") from error


def _let_go(gate: int) -> None:
    try:
        os.write(gate, _GO)
    except BrokenPipeError as error:
        raise ShimError("the server ended before it began; the bundle's log says why") from error


def _leave_traces(bundle: str, told: StartInput, address: str, written: list[str]) -> None:
    """Write into the bundle what this caller's restart needs; `written` takes the paths."""
    if told.socket_dir:
        link = os.path.join(bundle, SOCKET_DIR_LINK)
        temporary = f"{link}.{os.getpid()}"
        os.symlink(told.socket_dir, temporary)
        os.rename(temporary, link)
        written.append(link)
    if told.wants_address_file:
        path = os.path.join(bundle, ADDRESS_FILE)
        write_atomic(path, address.encode(), mode=_ADDRESS_MODE)
        written.append(path)
