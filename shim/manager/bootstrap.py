"""What a manager tells a shim's `start` command, and what it makes of the answer (protocol.md 2.4 and 2.5).

We speak as a 2.4 daemon does: BootstrapParams on stdin, and on stdout any of four forms, tried in this order: a
serialized BootstrapResult, JSON with version 2 or more, the whole text as an address.  Everything here is pure.

Invariants: an answer that comes out names a task service version that we speak and an address that can be dialled; all
else is an error that shows what the shim said.  Refuses what a 2.4 daemon would take and then fail to dial: nothing at
all, several lines, unprintable bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final

import attrs
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError

from shim.errors import InvalidArgument, Unimplemented
from shim.wire.address import parse_address
from shim.wire.proto.bootstrap_pb2 import BootstrapParams, BootstrapResult, Extension, LogLevel

CONTAINERD_VERSION: Final = "2.4.2"
"""The daemon that we behave like: shims may choose their answer's form by it."""
SUPPORTED_VERSIONS: Final = (2, 3)
SHOWN_BYTES: Final = 2000


@attrs.frozen
class Answer:
    """What `start` answered.  `version` is that of the task service, `extensions` are kept as they came."""

    version: int
    address: str
    protocol: str = "ttrpc"
    metadata: dict[str, str] = attrs.field(factory=dict)
    extensions: tuple[Any, ...] = ()


def parameters(
    task_id: str,
    namespace: str,
    *,
    address: str,
    ttrpc_address: str,
    binary: str,
    debug: bool = False,
    options: Any | None = None,
    socket_dir: str = "",
) -> bytes:
    """The stdin of `start`; runtime options travel as an extension, used as it is.  No `socket_dir`: left out."""
    extensions = [] if options is None else [Extension(value=options)]
    return BootstrapParams(
        instance_id=task_id,
        namespace=namespace,
        log_level=LogLevel.LOG_LEVEL_DEBUG if debug else LogLevel.LOG_LEVEL_INFO,
        containerd_version=CONTAINERD_VERSION,
        containerd_ttrpc_address=ttrpc_address,
        containerd_grpc_address=address,
        containerd_binary=binary,
        extensions=extensions,
        socket_dir=socket_dir or None,
    ).SerializeToString()


def legacy_parameters(options: Any | None) -> bytes:
    """The stdin of `start` for shims of 1.6 to 2.2: the options' Any, or nothing."""
    return b"" if options is None else options.SerializeToString()


def wants_legacy_parameters(output: bytes | bytearray, task_id: str) -> bool:
    """Did a failed `start` fail because the shim took our parameters for the Any of older daemons?

    There is nothing to ask a shim beforehand: its `-v` is free text.  But the Go shims of 1.6 to 2.2 parse stdin as an
    Any; in BootstrapParams the instance id stands where an Any has its type URL, and that URL is not known to them:
    `type with url ID: not found` (seen with 1.6.20, which by then has ended the server it began).
    """
    return f"type with url {task_id}: not found".encode() in output


def parse_answer(output: bytes) -> Answer:
    """The answer in the output of `start`, or in a bootstrap.json or `address` file.

    InvalidArgument, with what was read, when it is none; Unimplemented for a version or protocol that we do not speak.
    """
    answer = _from_result(output) or _from_json(output) or _from_text(output)
    if answer.version not in SUPPORTED_VERSIONS:
        raise Unimplemented(f"the shim speaks task service version {answer.version}; 2 and 3 are understood")
    if answer.protocol != "ttrpc":
        raise Unimplemented(f"the shim speaks {shown(answer.protocol.encode())}; only ttrpc is understood")
    return answer


def answer_to_json(answer: Answer) -> bytes:
    """The bytes of bootstrap.json: fields under their wire names, an Any as type_url and base64 value."""
    document: dict[str, object] = {"version": answer.version, "address": answer.address, "protocol": answer.protocol}
    if answer.metadata:
        document["metadata"] = answer.metadata
    if answer.extensions:
        document["extensions"] = [
            {"value": {"type_url": value.type_url, "value": base64.b64encode(value.value).decode()}}
            for value in answer.extensions
        ]
    return json.dumps(document, separators=(",", ":")).encode()


def shown(output: bytes | bytearray) -> str:
    """The shim's own words, fit for one message: bounded, printable, without the line end."""
    cut = output[:SHOWN_BYTES]
    text = cut.decode(errors="backslashreplace").strip()
    lines = (line.rstrip() for line in text.splitlines())
    plain = "; ".join("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines if line)
    return plain + ("..." if len(output) > SHOWN_BYTES else "")


def _from_result(output: bytes) -> Answer | None:
    """A text can parse as a message of unknown fields by luck; without an address it is none."""
    try:
        result = BootstrapResult.FromString(output)
    except DecodeError:
        return None
    if not result.address:
        return None
    _check_address(result.address, output)
    return Answer(
        result.version,
        result.address,
        result.protocol.lower() or "ttrpc",
        dict(result.metadata),
        tuple(extension.value for extension in result.extensions),
    )


def _from_json(output: bytes) -> Answer | None:
    try:
        document = json.loads(output)
    except (ValueError, RecursionError) as error:
        if output.lstrip()[:1] == b"{":  # begun as JSON: a file that was cut, and no address
            raise InvalidArgument(f"the shim answered broken JSON: {shown(output)}") from error
        return None
    if not isinstance(document, dict):
        return None
    version, address, protocol = document.get("version"), document.get("address"), document.get("protocol", "ttrpc")
    if not (type(version) is int and version >= 2 and isinstance(address, str) and isinstance(protocol, str)):
        raise InvalidArgument(
            f"the shim answered JSON without version 2 or more, address and protocol: {shown(output)}"
        )
    _check_address(address, output)
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InvalidArgument(f"the shim answered JSON whose metadata are no texts: {shown(output)}")
    return Answer(version, address, protocol.lower() or "ttrpc", metadata, _json_extensions(document, output))


def _json_extensions(document: dict[str, object], output: bytes) -> tuple[Any, ...]:
    extensions = []
    try:
        listed = document.get("extensions") or []
        assert isinstance(listed, list)
        for entry in listed:
            value = entry["value"]
            extensions.append(Any(type_url=value["type_url"], value=base64.b64decode(value.get("value", ""))))
    except (AssertionError, AttributeError, KeyError, TypeError, binascii.Error) as error:
        raise InvalidArgument(f"the shim answered JSON with broken extensions: {shown(output)}") from error
    return tuple(extensions)


def _from_text(output: bytes) -> Answer:
    try:
        address = output.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the shim answered no address, but: {shown(output)}") from error
    if not address:
        raise InvalidArgument("the shim answered nothing")
    _check_address(address, output)
    return Answer(2, address)


def _check_address(address: str, output: bytes) -> None:
    """An address is one printable word of a form that can be dialled (protocol.md 1.7)."""
    if not address or not address.isprintable() or any(character.isspace() for character in address):
        raise InvalidArgument(f"the shim answered no address, but: {shown(output)}")
    try:
        parse_address(address)
    except InvalidArgument as error:
        raise InvalidArgument(f"the shim answered an address that cannot be dialled: {error.message}") from error
