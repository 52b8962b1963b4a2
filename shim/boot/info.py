"""`-info`: what this runtime is and what the OCI runtime behind it can do (protocol.md 2.6).

Refuses a runtime that is not there; one that does not know `features`, hangs or prints something else is only left
without them, since absent means unknown.
"""

from __future__ import annotations

import json
import shutil
from typing import Final

import trio

from shim.boot.bootstrap import read_options
from shim.boot.stdio import read_stdin, write_stdout
from shim.boot.version import REVISION, RUNTIME_NAME, VERSION
from shim.errors import NotFound
from shim.kernel.children import Command, open_children
from shim.kernel.commands import run
from shim.task.options import decode_options
from shim.wire.proto.runtime_info_pb2 import RuntimeInfo, RuntimeVersion
from shim.wire.typeurl import FEATURES_URL, pack_json

FEATURES_SECONDS: Final = 3.0
_FEATURES_LIMIT: Final = 1 << 20


def run_info() -> None:
    """Print the RuntimeInfo for the options on standard input.  Raises ShimError or OSError."""
    options = read_options(read_stdin())
    name = decode_options(options).binary
    binary = shutil.which(name)
    if binary is None:
        raise NotFound(f"runtime {name!r} in PATH")
    info = RuntimeInfo(name=RUNTIME_NAME, version=RuntimeVersion(version=VERSION, revision=REVISION))
    if options is not None:
        info.options.CopyFrom(options)
    features = trio.run(read_features, binary)  # noqa: TID251 - this command's one run
    if features is not None:
        info.features.CopyFrom(pack_json(FEATURES_URL, features))
    write_stdout(info.SerializeToString(deterministic=True))


async def read_features(binary: str) -> bytes | None:
    """The JSON that `BINARY features` prints; None when it fails, hangs or prints anything else."""
    with trio.move_on_after(FEATURES_SECONDS):
        async with open_children() as children:
            try:
                completed = await run(children, Command([binary, "features"]), stdout_limit=_FEATURES_LIMIT)
            except OSError:
                return None
            if completed.exit.status == 0 and _is_json_object(completed.stdout):
                return completed.stdout
    return None


def _is_json_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False
