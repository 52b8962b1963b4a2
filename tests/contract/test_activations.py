"""What a manager may expect of any mount manager: the suite that the one in memory and the real one pass alike.

A new implementation is added to `MAKERS`; the sources that it is given are made by its maker, so that no test depends
on what really is mounted.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pytest
import trio

from shim.errors import AlreadyExists, NotFound, Unimplemented
from shim.manager.activations import ActivateOptions, Activations
from shim.model.capabilities import MountClaims
from shim.model.mounts import Mount
from tests.fakes.activations import MemoryActivations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@attrs.frozen
class Subject:
    """An implementation, and mounts that it can make: plain ones, and one for its `erofs` handler."""

    activations: Activations
    bind: Mount
    image: Mount
    formatted: Mount
    """An overlay over the mount before it, with the transforms `format/mkdir`."""


Maker: TypeAlias = "Callable[[Path], AbstractAsyncContextManager[Subject]]"


@asynccontextmanager
async def in_memory(directory: Path) -> AsyncIterator[Subject]:
    await trio.lowlevel.checkpoint()
    yield Subject(
        MemoryActivations(),
        Mount("bind", str(directory), "", ("rbind",)),
        Mount("erofs", str(directory / "image"), "", ("ro",)),
        Mount("format/mkdir/overlay", "overlay", "", ("lowerdir={{ mount 0 }}", "upperdir=/u", "workdir=/w")),
    )


MAKERS: list[Maker] = [in_memory]


@pytest.fixture(params=MAKERS, ids=lambda maker: maker.__name__)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with request.param(tmp_path) as made:
        yield made


def claims(*types: str, transforms: tuple[str, ...] = ()) -> ActivateOptions:
    return ActivateOptions(claims=MountClaims(types, transforms))


async def test_what_needs_no_manager_is_not_implemented(subject: Subject) -> None:
    with pytest.raises(Unimplemented):
        await subject.activations.activate("ns", "a", [subject.bind], ActivateOptions())
    with pytest.raises(NotFound):
        await subject.activations.info("ns", "a")


async def test_what_the_shim_claims_is_left_to_it(subject: Subject) -> None:
    with pytest.raises(Unimplemented):
        await subject.activations.activate("ns", "a", [subject.image], claims("erofs"))


async def test_an_image_is_mounted_and_what_follows_is_the_shims(subject: Subject) -> None:
    options = ActivateOptions(labels={"owner": "a"})
    made = await subject.activations.activate("ns", "a", [subject.image, subject.bind], options)
    assert made.name == "a"
    assert [one.mount for one in made.active] == [subject.image]
    assert made.active[0].mount_point.startswith("/")
    assert made.system == (subject.bind,)
    assert made.labels == {"owner": "a"}
    found = await subject.activations.info("ns", "a")
    assert [one.mount_point for one in found.active] == [one.mount_point for one in made.active]
    await subject.activations.deactivate("ns", "a")


async def test_transforms_are_applied_up_to_the_last_one_that_is_not_claimed(subject: Subject) -> None:
    mounts = [subject.bind, subject.formatted]
    for claimed, left in (((), "overlay"), (("format",), "overlay"), (("mkdir",), "mkdir/overlay")):
        made = await subject.activations.activate("ns", "a", mounts, claims(transforms=claimed))
        assert [one.mount for one in made.active] == [subject.bind]
        assert made.system[0].type == left
        await subject.activations.deactivate("ns", "a")
    with pytest.raises(Unimplemented):
        await subject.activations.activate("ns", "a", mounts, claims(transforms=("format", "mkdir")))


async def test_a_name_that_is_active_already_exists_and_is_untouched(subject: Subject) -> None:
    made = await subject.activations.activate("ns", "a", [subject.image], ActivateOptions())
    with pytest.raises(AlreadyExists):
        await subject.activations.activate("ns", "a", [subject.image, subject.bind], ActivateOptions())
    assert (await subject.activations.info("ns", "a")).system == made.system
    await subject.activations.deactivate("ns", "a")


async def test_names_belong_to_their_namespace(subject: Subject) -> None:
    for namespace in ("one", "two"):
        await subject.activations.activate(namespace, "a", [subject.image], ActivateOptions())
    assert [found.name for found in await subject.activations.list("one")] == ["a"]
    await subject.activations.deactivate("one", "a")
    assert await subject.activations.list("one") == []
    await subject.activations.deactivate("two", "a")


async def test_what_is_gone_is_not_found(subject: Subject) -> None:
    await subject.activations.activate("ns", "a", [subject.image], ActivateOptions())
    await subject.activations.deactivate("ns", "a")
    with pytest.raises(NotFound):
        await subject.activations.deactivate("ns", "a")
    with pytest.raises(NotFound):
        await subject.activations.info("ns", "a")


async def test_temporary_mounts_all_and_binds_the_last(subject: Subject) -> None:
    made = await subject.activations.activate("ns", "a", [subject.bind], ActivateOptions(temporary=True))
    assert made.system == (Mount("bind", made.active[-1].mount_point, "", ("rbind",)),)
    await subject.activations.deactivate("ns", "a")


async def test_a_cancelled_activation_leaves_nothing(subject: Subject) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await subject.activations.activate("ns", "a", [subject.image, subject.image], ActivateOptions())
    assert await subject.activations.list("ns") == []
    made = await subject.activations.activate("ns", "a", [subject.image], ActivateOptions())
    assert len(made.active) == 1
    await subject.activations.deactivate("ns", "a")
