"""The runtime options that come with a request, decoded: what the Any holds, or points at, as one RuncOptions.

Three forms are known: `containerd.runc.v1.Options`; `runtimeoptions.v1.Options`, which carries TOML in itself or the
path of a TOML file; and nothing at all.  Refuses any other type with the text that containerd's users know
(protocol.md 3.4 row 1, 6.2).
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING, Final

from shim import convert
from shim.errors import InvalidArgument
from shim.model.options import RuncOptions
from shim.wire.proto.runc_options_pb2 import Options
from shim.wire.proto.runtime_options_pb2 import Options as RuntimeOptions
from shim.wire.typeurl import is_a, unpack

if TYPE_CHECKING:
    from google.protobuf.any_pb2 import Any

MAX_CONFIG_BYTES: Final = 1024 * 1024
"""A configuration file that is larger is none."""

_log = logging.getLogger(__name__)


def decode_options(value: Any | None) -> RuncOptions:
    """The options in `value`; defaults when it is None or holds nothing.

    Raises InvalidArgument for a type that is not known (`type with url X: not found`), a value that does not parse,
    and a TOML document that cannot be read or is wrong, which is named together with the key at fault.
    """
    if value is None or not (value.type_url or value.value):
        return RuncOptions()
    if is_a(value, RuntimeOptions):
        return _from_document(unpack(value, RuntimeOptions))
    return from_message(unpack(value, Options))


def from_message(message: Options) -> RuncOptions:
    """The options in their message."""
    return RuncOptions(
        no_pivot_root=message.no_pivot_root,
        no_new_keyring=message.no_new_keyring,
        shim_cgroup=message.shim_cgroup,
        io_uid=message.io_uid,
        io_gid=message.io_gid,
        binary_name=message.binary_name,
        root=message.root,
        systemd_cgroup=message.systemd_cgroup,
        criu_image_path=message.criu_image_path,
        criu_work_path=message.criu_work_path,
        task_api_address=message.task_api_address,
        task_api_version=message.task_api_version,
    )


def _from_document(message: RuntimeOptions) -> RuncOptions:
    """The options in the TOML that `message` carries or points at; a body wins, as the more recent of the two."""
    if message.config_body:
        data, source = message.config_body, "config_body"
    elif message.config_path:
        data, source = _read_config(message.config_path), message.config_path
    else:
        return RuncOptions()
    options, unknown = convert.options_from_toml(data, source)
    meaningless = [key for key in unknown if key not in _ENVELOPE_KEYS]
    if meaningless:
        _log.warning("options that mean nothing here", extra={"source": source, "keys": ",".join(meaningless)})
    return options


_ENVELOPE_KEYS: Final = frozenset({"TypeUrl", "ConfigPath", "ConfigBody"})
"""Keys of the envelope itself, which containerd's CRI leaves in the body."""


def _read_config(path: str) -> bytes:
    if not path.startswith("/"):
        raise InvalidArgument(f"config_path {path!r} must be absolute")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo must not hold us
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidArgument(f"config_path {path} is not a regular file")
            with os.fdopen(fd, "rb", closefd=False) as stream:
                data = stream.read(MAX_CONFIG_BYTES + 1)
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read config_path {path!r}: {error}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise InvalidArgument(f"config_path {path} holds more than {MAX_CONFIG_BYTES} bytes")
    return data
