"""What a manager is made with: an administrator's settings, and what only a program can give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import attrs

from shim.convert import settings_from_toml
from shim.errors import NotFound
from shim.kernel.files import read_bounded
from shim.manager.layout import Layout
from shim.manager.logs import to_logger
from shim.manager.lookup import ShimLookup
from shim.model.budgets import Budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from google.protobuf.any_pb2 import Any

    from shim.manager.activations import Activations
    from shim.manager.bundle import Bundle
    from shim.model.settings import ManagerSettings
    from shim.wire.proto.envelope_pb2 import Envelope
    from shim.wire.proto.mount_pb2 import Mount


def _ignore_event(event: Envelope) -> None:
    """The callback used when none is given."""


@attrs.frozen
class ManagerConfig:
    """What a manager is made with.  `on_event` and `on_log` are called on its loop and must not block.

    The fields that a file can set are those of `shim.model.settings.ManagerSettings`, where they are explained.
    """

    layout: Layout = attrs.field(factory=Layout)
    budgets: Budgets = attrs.field(factory=Budgets)
    lookup: ShimLookup = attrs.field(factory=ShimLookup)
    debug: bool = False
    on_event: Callable[[Envelope], None] = _ignore_event
    on_log: Callable[[str, str], None] = to_logger
    env: Mapping[str, str] = attrs.field(factory=dict)
    socket_dir: str = ""
    runtimes: Sequence[str] = ()
    require_known: bool = False
    activations: Activations | None = None
    """The mount manager; None: shims get all mounts as they are."""

    @classmethod
    def from_settings(cls, settings: ManagerSettings) -> Self:
        """With what a file sets; the rest is for `attrs.evolve`."""
        return cls(
            layout=Layout(settings.state, settings.root),
            budgets=settings.budgets,
            lookup=ShimLookup(settings.search) if settings.search else ShimLookup(),
            debug=settings.debug,
            env=settings.env,
            socket_dir=settings.socket_dir,
            runtimes=settings.runtimes,
            require_known=settings.require_known,
        )

    @classmethod
    def from_file(cls, path: str) -> Self:
        """With what the TOML file at `path` sets; NotFound without one, InvalidArgument names each faulty key."""
        try:
            data = read_bounded(path)
        except FileNotFoundError as error:
            raise NotFound(f"configuration file {path}") from error
        return cls.from_settings(settings_from_toml(data, path))


@attrs.frozen
class TaskInputs:
    """What a task is created with beside its specification; empty stream paths mean /dev/null."""

    rootfs: Sequence[Mount] = ()
    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    terminal: bool = False
    options: Any | None = None
    """Options of this task; a shim's `start` and `-info` get the runtime options instead, where there are any."""


def no_inputs(bundle: Bundle) -> TaskInputs:
    """A task without root mounts and streams."""
    del bundle
    return TaskInputs()
