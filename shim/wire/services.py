"""Tables of the services that cross a shim's sockets, read from the compiled schemas.

A table says what a method takes and gives, nothing of who answers it.  The task service exists under two names with one
table (protocol.md 3), so v2 is v3 renamed and handlers see the same message classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from google.protobuf import message_factory

from shim.wire.proto import events_ttrpc_pb2, mounts_pb2, sandbox_pb2, task_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.message import Message


@attrs.frozen
class MethodSpec:
    """One method: its bare name, the classes of its messages and which side may send many of them."""

    name: str
    request: type[Message]
    response: type[Message]
    client_streams: bool = False
    server_streams: bool = False

    @property
    def streaming(self) -> bool:
        """Whether either side sends more than one message."""
        return self.client_streams or self.server_streams


@attrs.frozen
class ServiceSpec:
    """A service: the full name that stands in a request, and its methods by bare name."""

    name: str
    methods: Mapping[str, MethodSpec]

    def renamed(self, name: str) -> ServiceSpec:
        """The same table under another full name."""
        return ServiceSpec(name, self.methods)


def describe(file: FileDescriptor, service: str) -> ServiceSpec:
    """The table of the service with that bare name in a compiled schema; KeyError when the schema has none."""
    descriptor = file.services_by_name[service]
    methods = {
        method.name: MethodSpec(
            name=method.name,
            request=message_factory.GetMessageClass(method.input_type),
            response=message_factory.GetMessageClass(method.output_type),
            client_streams=method.client_streaming,
            server_streams=method.server_streaming,
        )
        for method in descriptor.methods
    }
    return ServiceSpec(descriptor.full_name, methods)


TASK_V3: Final = describe(task_pb2.DESCRIPTOR, "Task")
TASK_V2: Final = TASK_V3.renamed("containerd.task.v2.Task")
SANDBOX: Final = describe(sandbox_pb2.DESCRIPTOR, "Sandbox")
EVENTS: Final = describe(events_ttrpc_pb2.DESCRIPTOR, "Events")
MOUNTS: Final = describe(mounts_pb2.DESCRIPTOR, "Mounts")
