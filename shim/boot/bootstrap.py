"""What `start` is told on stdin and what it answers on stdout, for each generation of caller (protocol.md 2.4, 2.5).

No flag tells the generations apart.  The bytes on stdin do: BootstrapParams carry the id and namespace that also stand
in the flags; without that check an older caller's Any would pass for them, since both begin with two length-delimited
fields.  Pure: bytes, flags and environment in, facts and bytes out.
Refuses input that is neither, and parameters that are for somebody else.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Final

import attrs
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError

from shim.boot.version import API_VERSION
from shim.errors import InvalidArgument
from shim.wire import typeurl
from shim.wire.proto.bootstrap_pb2 import LOG_LEVEL_DEBUG, BootstrapParams, BootstrapResult, Extension
from shim.wire.proto.mount_pb2 import MountCapabilities
from shim.wire.proto.runc_options_pb2 import Options
from shim.wire.proto.runtime_options_pb2 import Options as RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shim.boot.flags import Flags

MAX_INPUT_BYTES: Final = 10 * 1024 * 1024
PROTOCOL: Final = "ttrpc"
OLD_API_VERSION: Final = 2
"""The one version that every caller before BootstrapParams takes."""


class Caller(enum.Enum):
    """How the caller speaks."""

    BOOTSTRAP = "containerd 2.3 and later: BootstrapParams in, BootstrapResult out"
    JSON = "containerd 1.7 to 2.2: options in, JSON out, and the address file for its restart"
    TEXT = "containerd 1.6: options in, the bare address out, and the address file"


@attrs.frozen
class StartInput:
    """What `start` was told, whichever way it came."""

    caller: Caller
    options: Any | None = None
    grpc_address: str = ""
    ttrpc_address: str = ""
    socket_dir: str = ""
    debug: bool = False

    @property
    def wants_address_file(self) -> bool:
        """Whether this caller restores its shims from the file `address` in the bundle (protocol.md 2.7)."""
        return self.caller is not Caller.BOOTSTRAP


def read_input(data: bytes, flags: Flags, environment: Mapping[str, str]) -> StartInput:
    """Make out what was said on stdin; InvalidArgument when it is neither parameters for us nor options."""
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidArgument(f"input of more than {MAX_INPUT_BYTES} bytes")
    params = _parameters(data)
    if params is not None and params.instance_id == flags.id and params.namespace == flags.namespace:
        return StartInput(
            caller=Caller.BOOTSTRAP,
            options=_options_among(params),
            grpc_address=flags.address or params.containerd_grpc_address,
            ttrpc_address=params.containerd_ttrpc_address or environment.get("TTRPC_ADDRESS", ""),
            socket_dir=params.socket_dir,
            debug=flags.debug or params.log_level <= LOG_LEVEL_DEBUG,
        )
    return StartInput(
        caller=Caller.JSON if environment.get("MAX_SHIM_VERSION") else Caller.TEXT,
        options=read_options(data),
        grpc_address=flags.address,
        ttrpc_address=environment.get("TTRPC_ADDRESS", ""),
        debug=flags.debug,
    )


def read_options(data: bytes) -> Any | None:
    """The options in an older caller's input, or that of `-info`: None for no bytes, InvalidArgument for no Any."""
    if not data:
        return None
    value = Any()
    try:
        value.ParseFromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"input is neither bootstrap parameters nor options: {error}") from error
    if not value.type_url or Any(type_url=value.type_url, value=value.value).SerializeToString() != data:
        params = _parameters(data)
        if params is not None and params.instance_id:
            raise InvalidArgument(
                f"bootstrap parameters are for {params.instance_id!r:.80} in {params.namespace!r:.80}, "
                "not for this id and namespace"
            )
        raise InvalidArgument("input is neither bootstrap parameters nor options")
    return value


def answer(caller: Caller, address: str) -> bytes:
    """What `start` prints for the shim at `address`."""
    if caller is Caller.TEXT:
        return address.encode()
    if caller is Caller.JSON:
        return json.dumps({"version": OLD_API_VERSION, "address": address, "protocol": PROTOCOL}).encode()
    # An empty claim, not a missing one: it tells the reader not to ask for the deprecated annotation (protocol.md 9.8).
    claim = Extension(value=typeurl.pack(MountCapabilities(), typeurl.GOOGLE_PREFIX))
    result = BootstrapResult(version=API_VERSION, address=address, protocol=PROTOCOL, extensions=[claim])
    return result.SerializeToString(deterministic=True)


def _parameters(data: bytes) -> BootstrapParams | None:
    params = BootstrapParams()
    try:
        params.ParseFromString(data)
    except DecodeError:
        return None
    return params


def _options_among(params: BootstrapParams) -> Any | None:
    """The first extension that holds runtime options; what else is there is not for us."""
    for extension in params.extensions:
        if typeurl.is_a(extension.value, Options) or typeurl.is_a(extension.value, RuntimeOptions):
            return extension.value
    return None
