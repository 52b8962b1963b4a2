"""The shim under test and the peers it is compared with.

`SHIM_UNDER_TEST` is empty for ours, `go-2.4` or `go-1.6` for the stock Go shims, or the path of any shim binary.
Peers are looked up in `SHIM_PEERS_DIR` (default `~/.cache/containerd-shim-trio/peers`) and, for containerd 1.6, on
the machine's own PATH.
"""

from __future__ import annotations

import enum
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import attrs
import pytest

from shim.wire.services import TASK_V2, TASK_V3, ServiceSpec

REPOSITORY: Final = Path(__file__).resolve().parents[3]
OUR_NAME: Final = "containerd-shim-trio-v2"
PEERS_DIR: Final = Path(
    os.environ.get("SHIM_PEERS_DIR", str(Path.home() / ".cache" / "containerd-shim-trio" / "peers"))
)


class Generation(enum.Enum):
    """How a caller starts a shim (protocol.md 2.3 and 2.4)."""

    V1_6 = "1.6"
    V1_7 = "1.7"
    V2 = "2.4"


class Kind(enum.Enum):
    """Whose program it is; decides which tests are run at all."""

    OURS = "ours"
    GO_2_4 = "go-2.4"
    GO_1_6 = "go-1.6"
    OTHER = "other"


def generations_of(kind: Kind) -> frozenset[Generation]:
    """The callers that a shim of that kind understands."""
    if kind is Kind.GO_2_4:
        return frozenset({Generation.V2})
    if kind is Kind.GO_1_6:
        return frozenset({Generation.V1_6, Generation.V1_7})
    return frozenset(Generation)


def wanted_kind() -> Kind:
    """Whose shim `SHIM_UNDER_TEST` names."""
    wanted = os.environ.get("SHIM_UNDER_TEST", "")
    if wanted in {"", "ours"} or Path(wanted).name == OUR_NAME:
        return Kind.OURS
    return next((kind for kind in Kind if kind.value == wanted), Kind.OTHER)


@attrs.frozen
class Subject:
    """One shim program."""

    kind: Kind
    path: Path

    @property
    def runtime(self) -> str:
        """The runtime name that leads containerd to this program (protocol.md 2.1)."""
        first, second = self.path.name.removeprefix("containerd-shim-").split("-")
        return f"io.containerd.{first}.{second}"

    @property
    def generations(self) -> frozenset[Generation]:
        """The callers that this program understands."""
        return generations_of(self.kind)

    @property
    def default_generation(self) -> Generation:
        """The newest of them."""
        return Generation.V1_6 if self.kind is Kind.GO_1_6 else Generation.V2

    @property
    def task_service(self) -> ServiceSpec:
        """The task service that it is sure to serve."""
        return TASK_V2 if self.kind is Kind.GO_1_6 else TASK_V3


def peer(name: str) -> Path:
    """A peer program by name; a test that needs one which is absent is skipped (tests/skips.txt)."""
    path = PEERS_DIR / name
    if not path.exists():
        pytest.skip(f"no peer program {path} (make peers says why)")
    return path


def _machine(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no peer program {name} of containerd 1.6 (make peers says why)")
    return Path(found)


def containerd_of(generation: Generation) -> Path:
    """The daemon of a generation: 1.6 from the machine, 2.4 from the peers."""
    return _machine("containerd") if generation is Generation.V1_6 else peer("containerd")


def ctr_of(generation: Generation) -> Path:
    """The client beside that daemon."""
    return _machine("ctr") if generation is Generation.V1_6 else peer("ctr")


def _our_program(directory: Path) -> Path:
    """The installed program, or, from a plain checkout, a script that runs the same entry point."""
    installed = Path(sys.executable).parent / OUR_NAME
    if installed.exists():
        return installed
    script = directory / OUR_NAME
    script.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m shim.boot.main "$@"\n')
    script.chmod(0o755)
    return script


def find_subject(directory: Path) -> Subject:
    """The shim that `SHIM_UNDER_TEST` names; `directory` may take a helper script."""
    wanted = os.environ.get("SHIM_UNDER_TEST", "")
    kind = wanted_kind()
    if "/" in wanted:
        return Subject(kind, Path(wanted).resolve(strict=True))
    match kind:
        case Kind.OURS:
            return Subject(kind, _our_program(directory))
        case Kind.GO_2_4:
            return Subject(kind, peer("containerd-shim-runc-v2"))
        case Kind.GO_1_6:
            return Subject(kind, _machine("containerd-shim-runc-v2"))
        case Kind.OTHER:
            raise ValueError(f"SHIM_UNDER_TEST={wanted} is neither a known name nor a path")
