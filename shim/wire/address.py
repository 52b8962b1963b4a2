"""Addresses of shims and daemons, taken apart (protocol.md 1.7); dialling them is the matter of `shim.rpc`."""

from __future__ import annotations

import attrs

from shim.errors import InvalidArgument


@attrs.frozen
class UnixAddress:
    """A socket in the file system, or an abstract one when the path starts with a NUL."""

    path: str


@attrs.frozen
class VsockAddress:
    """A virtual machine's socket."""

    cid: int
    port: int


@attrs.frozen
class HybridVsockAddress:
    """A port of a virtual machine behind a unix socket of its monitor."""

    path: str
    port: int


Address = UnixAddress | VsockAddress | HybridVsockAddress


def parse_address(text: str) -> Address:
    """The address that a text stands for: `unix://PATH`, `vsock://CID:PORT`, `hvsock://PATH:PORT`.

    A text without scheme is an abstract socket, as containerd has it, unless it starts with a slash: then it is a path,
    for people's convenience.  InvalidArgument for anything else.
    """
    scheme, separator, rest = text.partition("://")
    if not text:
        raise InvalidArgument("the address is empty")
    if not separator:
        return UnixAddress(text if text.startswith("/") else "\0" + text)
    if scheme == "unix":
        if not rest.startswith("/"):
            raise InvalidArgument(f"address {text}: the path is not absolute")
        return UnixAddress(rest)
    if scheme == "vsock":
        cid, _, port = rest.partition(":")
        return VsockAddress(_number(cid, text), _number(port, text))
    if scheme == "hvsock":
        path, _, port = rest.rpartition(":")
        if not path.startswith("/"):
            raise InvalidArgument(f"address {text}: the path is not absolute")
        return HybridVsockAddress(path, _number(port, text))
    raise InvalidArgument(f"address {text}: unknown scheme {scheme}")


def _number(text: str, address: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"address {address}: {text!r} is not a number")
    return int(text)
