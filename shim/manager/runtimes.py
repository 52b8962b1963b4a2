"""What runtimes say of themselves: asked by `-info`, kept, and used to refuse early what they cannot do.

Invariants: an answer is kept per program and options, a failure is not; at most one question about the same is under
way.  Runtime options count before task options, since they name the OCI runtime behind the shim (a custom BinaryName).
Only features that were told are held against a specification: a shim that returns none is left alone.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

import trio

from shim.errors import FailedPrecondition, InvalidArgument, ShimError
from shim.manager.launch import run_info
from shim.wire.proto.runtime_info_pb2 import RuntimeInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.any_pb2 import Any

    from shim.manager.launch import Launcher
    from shim.manager.lookup import ShimLookup

LOG: Final = logging.getLogger("shim.manager")


class Runtimes:
    """The runtimes of one manager."""

    def __init__(
        self, launcher: Launcher, lookup: ShimLookup, known: Sequence[str] = (), require_known: bool = False
    ) -> None:
        self._launcher: Final = launcher
        self._lookup: Final = lookup
        self._named: Final = tuple(known)
        self._require_known: Final = require_known
        self._infos: dict[tuple[str, bytes], RuntimeInfo] = {}
        self._asking: dict[tuple[str, bytes], trio.Lock] = {}

    def find(self, runtime: str) -> str:
        """The program of `runtime`; FailedPrecondition when it is none of those that the configuration names."""
        if self._require_known and runtime not in self._named:
            named = ", ".join(self._named) or "none"
            raise FailedPrecondition(f"runtime {runtime!r:.100} is not among those that are allowed ({named})")
        return self._lookup.find(runtime)

    async def ask_named(self) -> None:
        """Ask all that the configuration names, at once; who does not answer within the info budget is logged."""

        async def ask(runtime: str) -> None:
            try:
                await self.info(runtime)
            except ShimError as error:
                LOG.warning("runtime %s: %s", runtime, error)

        async with trio.open_nursery() as nursery:
            for runtime in self._named:
                nursery.start_soon(ask, runtime)

    async def info(
        self, runtime: str, runtime_options: Any | None = None, task_options: Any | None = None
    ) -> RuntimeInfo:
        """What `runtime` says of itself with these options; raises what running it raises."""
        binary = self.find(runtime)
        options = preferred_options(runtime_options, task_options)
        key = (binary, b"" if options is None else options.SerializeToString(deterministic=True))
        async with self._asking.setdefault(key, trio.Lock()):
            if key not in self._infos:
                self._infos[key] = await run_info(self._launcher, binary, options)
        copy = RuntimeInfo()
        copy.CopyFrom(self._infos[key])
        return copy

    async def check_spec(
        self, runtime: str, spec: bytes, runtime_options: Any | None, task_options: Any | None
    ) -> None:
        """FailedPrecondition when `spec` needs id-mapped mounts and the runtime's features say that it has none."""
        if not wants_idmapped_mounts(spec):
            return
        try:
            info = await self.info(runtime, runtime_options, task_options)
        except ShimError as error:
            LOG.debug("%s could not be asked for its features: %s", runtime, error)
            return
        if info.HasField("features") and info.features.value and not has_idmapped_mounts(info.features.value):
            raise FailedPrecondition(
                f"the specification has id-mapped mounts, and the OCI runtime behind {runtime} does not have "
                "linux.mountExtensions.idmap.enabled among its features: use a newer one, or mounts without mappings"
            )


def preferred_options(runtime_options: Any | None, task_options: Any | None) -> Any | None:
    """Runtime options when they have a value, else task options."""
    for options in (runtime_options, task_options):
        if options is not None and options.value:
            return options
    return runtime_options if runtime_options is not None else task_options


def wants_idmapped_mounts(spec: bytes) -> bool:
    """Whether a mount of the specification carries mappings of its own, or asks for the container's."""
    try:
        mounts = json.loads(spec).get("mounts") or []
        return any(
            entry.get("uidMappings")
            or entry.get("gidMappings")
            or {"idmap", "ridmap"} & set(entry.get("options") or [])
            for entry in mounts
        )
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"the mounts of the specification cannot be read: {error}") from error


def has_idmapped_mounts(features: bytes) -> bool:
    """Whether a features document says that id-mapped mounts are there (protocol.md 6.3)."""
    try:
        found = json.loads(features)["linux"]["mountExtensions"]["idmap"]["enabled"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return False
    return found is True
