"""The type of a mount as it crosses the wire: transforms, then the kind, `format/mkdir/overlay` (protocol.md 9.7).

Transforms are applied left to right, each taking its own name off.  A name that is no transform ends them: it and what
follows is then the kind, which nothing can mount, for no kind has a slash in its name.  That is how a transform that
only somebody else knows is refused rather than handed to the kernel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from shim.errors import InvalidArgument, Unimplemented
from shim.model.mount_options import MANAGER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection

    from shim.model.mounts import Mount

FORMAT: Final = "format"
MKFS: Final = "mkfs"
MKDIR: Final = "mkdir"
TRANSFORMS: Final = (FORMAT, MKFS, MKDIR)

_ACTION: Final = re.compile(r"\{\{(-\s+)?\s*(source|target|mount|overlay)\b")


@attrs.frozen
class MountType:
    """A type taken apart; `kind` has a slash only where it begins with a name that is no transform."""

    transforms: tuple[str, ...]
    kind: str

    @property
    def is_known(self) -> bool:
        """Whether the kind can be one: neither empty nor an unknown transform and what it was to work on."""
        return self.kind != "" and "/" not in self.kind

    def text(self) -> str:
        """As it is written."""
        return "/".join([*self.transforms, self.kind])

    def without(self, count: int) -> MountType:
        """What is left when the first `count` transforms were applied."""
        return MountType(self.transforms[count:], self.kind)


def split_type(text: str, known: Collection[str] = TRANSFORMS) -> MountType:
    """Take a type apart, `known` being the names of transforms."""
    transforms: list[str] = []
    while True:
        name, slash, rest = text.partition("/")
        if not slash or name not in known:
            return MountType(tuple(transforms), text)
        transforms.append(name)
        text = rest


def has_template(text: str) -> bool:
    """Whether there is an action of the template language in `text`; other braces may be part of a name."""
    return _ACTION.search(text) is not None


def check_options(mount: Mount, kind: MountType) -> None:
    """Refuse options that are for a transform which the type does not have.  Raises InvalidArgument."""
    for option in mount.options:
        if option.startswith(MANAGER_PREFIX):
            name = option.partition("=")[0]
            if name.removeprefix(MANAGER_PREFIX).partition(".")[0] not in kind.transforms:
                raise InvalidArgument(f"mount option {name} is for a transform that {mount.type} does not have")


def check_plain(mount: Mount) -> None:
    """Refuse what must not reach the kernel: a transform, its options, or the text of a template.

    Raises Unimplemented for a type with a transform, InvalidArgument for the rest.
    """
    if "/" in mount.type:
        raise Unimplemented(f"mount type {mount.type}")
    if not mount.type:
        raise InvalidArgument("a mount without a type")
    for text in (mount.source, mount.target, *mount.options):
        if has_template(text):
            raise InvalidArgument(f"template text in a {mount.type} mount to which no format was applied: {text}")
    for option in mount.options:
        if option.startswith(MANAGER_PREFIX):
            name = option.partition("=")[0]
            raise InvalidArgument(f"mount option {name} belongs to a transform that was not applied")
