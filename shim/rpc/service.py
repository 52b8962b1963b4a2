"""Who answers what: a service's table and the functions behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from shim.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from shim.wire.services import ServiceSpec

# Each takes the one message class that its method's table names, which a mapping's type cannot say.  A streaming
# method's handler takes a `ServerStream` instead, and gives None when it is the server that streams.
Handler = Callable[..., Awaitable["Message | None"]]

# A unary method's answer where it is at hand: tried first, on the connection's own task, so it must be quick.  It
# raises trio.WouldBlock where the handler has to be asked instead, and must have done nothing by then.
Nowait = Callable[..., "Message"]


@attrs.frozen
class Service:
    """A table and its handlers by method name; a method without one answers Unimplemented."""

    spec: ServiceSpec
    handlers: Mapping[str, Handler]
    nowait: Mapping[str, Nowait] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """A handler for a method that the table does not have is a bug of whoever wrote it."""
        strange = sorted((self.handlers.keys() | self.nowait.keys()) - self.spec.methods.keys())
        if strange:
            raise InvalidArgument(f"{self.spec.name} has no method {', '.join(strange)}")
        streaming = sorted(name for name in self.nowait if self.spec.methods[name].streaming)
        if streaming:
            raise InvalidArgument(f"{self.spec.name}: {', '.join(streaming)} cannot be answered at once")


@attrs.frozen
class Registry:
    """All services of one server, ready to be looked up by the names that a request carries."""

    specs: Mapping[str, ServiceSpec]
    handlers: Mapping[str, Mapping[str, Handler]]
    nowait: Mapping[str, Mapping[str, Nowait]]

    @classmethod
    def of(cls, services: Sequence[Service]) -> Registry:
        """Of a list; a later service replaces an earlier one with the same name."""
        return cls(
            {service.spec.name: service.spec for service in services},
            {service.spec.name: service.handlers for service in services},
            {service.spec.name: service.nowait for service in services},
        )
