"""Messages inside an Any, named the way containerd's typeurl package names them (protocol.md 6.1).

Writing gives the bare full name unless a prefix is asked for; reading goes by the text after the last slash, so that
bare and `type.googleapis.com/` forms both work.  Go types that are not protobuf travel as JSON under registered paths;
those URLs are constants here, and their values are never parsed in this room.
"""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError, Message

from shim.errors import InvalidArgument

GOOGLE_PREFIX: Final = "type.googleapis.com/"

SPEC_URL: Final = "types.containerd.io/opencontainers/runtime-spec/1/Spec"
PROCESS_URL: Final = "types.containerd.io/opencontainers/runtime-spec/1/Process"
LINUX_RESOURCES_URL: Final = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"
WINDOWS_RESOURCES_URL: Final = "types.containerd.io/opencontainers/runtime-spec/1/WindowsResources"
FEATURES_URL: Final = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

M = TypeVar("M", bound=Message)


def type_name(url: str) -> str:
    """The full message name that a URL stands for: what follows its last slash."""
    return url.rpartition("/")[2]


def is_a(value: Any, message_type: type[Message]) -> bool:
    """Whether the Any says that it holds this type, whatever the prefix."""
    return type_name(value.type_url) == message_type.DESCRIPTOR.full_name


def pack(message: Message, prefix: str = "") -> Any:
    """The message as an Any; `prefix` stands in front of its full name and ends in a slash when given."""
    return Any(
        type_url=prefix + message.DESCRIPTOR.full_name,
        value=message.SerializeToString(deterministic=True),
    )


def unpack(value: Any, *types: type[M]) -> M:
    """The message inside, which must be one of the types.

    Raises InvalidArgument for another URL and for a value that does not parse.
    """
    name = type_name(value.type_url)
    for candidate in types:
        if candidate.DESCRIPTOR.full_name == name:
            message = candidate()
            try:
                message.ParseFromString(value.value)
            except DecodeError as error:
                raise InvalidArgument(f"value of type url {value.type_url} does not parse: {error}") from error
            return message
    raise InvalidArgument(f"type with url {value.type_url}: not found")


def pack_json(url: str, text: bytes) -> Any:
    """An Any for a Go type that travels as JSON: the registered path and the bytes, as they are."""
    return Any(type_url=url, value=text)
