"""Creation fails or is cancelled at each of its steps: nothing is left, and all is undone in the right order."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from google.protobuf.any_pb2 import Any
from google.protobuf.empty_pb2 import Empty

from shim.errors import FailedPrecondition, InvalidArgument, NotFound, ShimError, Unknown
from shim.manager.activations import ActivateOptions
from shim.manager.bootstrap import Answer, answer_to_json
from shim.manager.config import TaskInputs
from shim.manager.manager import open_manager
from shim.model.capabilities import MountClaims
from shim.model.mounts import Mount
from shim.wire import typeurl
from shim.wire.proto import mount_pb2
from shim.wire.proto.runtime_info_pb2 import RuntimeInfo
from shim.wire.proto.task_pb2 import CreateTaskRequest
from tests.fakes.activations import MemoryActivations
from tests.fakes.shim_server import FakeShim, open_fake_shim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from shim.manager.bundle import Bundle
    from shim.manager.manager import Manager
    from tests.unit.manager.conftest import Place

EROFS = mount_pb2.Mount(type="erofs", source="/image", options=["ro"])
BIND = mount_pb2.Mount(type="bind", source="/tmp", options=["rbind"])
CHAIN = mount_pb2.Mount(type="format/mkdir/overlay", source="overlay")


@attrs.frozen
class Made:
    """A manager with a mount manager in memory, over a fake shim that notes its calls between those of the mounts."""

    place: Place
    manager: Manager
    shim: FakeShim
    mounts: MemoryActivations

    async def create(self, *rootfs: mount_pb2.Mount, task_id: str = "t1", **more: object) -> object:
        given = rootfs or (EROFS, BIND)
        wanted = {"runtime": "fake.given.v1", "prepare": lambda bundle: TaskInputs(rootfs=given), **more}
        return await self.manager.create("ns", task_id, b"{}", **wanted)  # type: ignore[arg-type]

    def left(self) -> list[str]:
        """Everything that a creation could leave."""
        layout = self.manager.config.layout
        locks = os.listdir(layout.locks) if os.path.isdir(layout.locks) else []
        socket = ["socket"] if (self.place.path / "s").exists() and self.shim.scope.cancel_called else []
        directories = [layout.bundles("ns"), layout.works("ns")]
        found = [name for directory in directories if os.path.isdir(directory) for name in os.listdir(directory)]
        return [*found, *locks, *socket, *self.mounts.mounted]


def answer(place: Place, *extensions: Any, version: int = 3) -> None:
    found = Answer(version, f"unix://{place.path}/s", extensions=extensions)
    (place.path / "start").write_bytes(answer_to_json(found))
    (place.path / "delete").write_bytes(b"")


@asynccontextmanager
async def open_made(place: Place) -> AsyncIterator[Made]:
    if not (place.path / "start").exists():
        answer(place)
    mounts = MemoryActivations()
    config = attrs.evolve(place.config, activations=mounts)
    async with open_fake_shim(place.path / "s") as shim:
        mounts.calls = shim.calls  # one list, so that the order between the two is seen
        async with open_manager(config) as manager:
            yield Made(place, manager, shim, mounts)


async def refuse(_: Message) -> Message:
    await trio.lowlevel.checkpoint()
    raise Unknown("no")


async def stay(_: Message) -> Message:
    """As a shim that has other tasks: it answers and does not leave."""
    await trio.lowlevel.checkpoint()
    return Empty()


async def test_the_order_is_shim_mounts_task_and_the_end_is_its_reverse(place: Place) -> None:
    got: list[CreateTaskRequest] = []
    async with open_made(place) as made:
        given = made.shim.behave

        async def note(request: Message) -> Message:
            assert isinstance(request, CreateTaskRequest)
            got.append(request)
            del given["Create"]
            made.shim.calls.pop()
            return await made.shim.answer("Create", request)

        given["Create"] = note
        task = await made.create()
        assert made.shim.calls == ["Connect", "activate", "mount", "Create"]
        assert list(got[0].rootfs) == [BIND]
        assert made.mounts.options == [
            ActivateOptions(labels={"containerd.io/gc.bref.container": "t1"}, claims=MountClaims())
        ]
        await task.delete()  # type: ignore[attr-defined]
        assert made.shim.calls[-4:] == ["State", "Delete", "Shutdown", "deactivate"]
        assert made.left() == []


STEPS = ["lookup", "bundle", "prepare", "start", "bootstrap.json", "activate", "mount", "Create"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_failure_at_any_step_leaves_nothing(place: Place, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Unknown("no")

    async with open_made(place) as made:
        more: dict[str, object] = {}
        match step:
            case "lookup":
                more["runtime"] = "fake.missing.v1"
            case "bundle":
                monkeypatch.setattr(os, "symlink", fail)
            case "prepare":
                more["prepare"] = fail
            case "start":
                more["runtime"] = "fake.fails.v1"
            case "bootstrap.json":
                monkeypatch.setattr("shim.manager.creation.write_start", fail)
            case "activate" | "mount":
                made.mounts.fail[step] = Unknown("no")
            case "Create":
                made.shim.behave["Create"] = refuse
        with pytest.raises(ShimError):
            await made.create(**more)  # type: ignore[arg-type]
        assert made.left() == []
        calls = made.shim.calls
        if step == "Create":
            assert calls.index("Shutdown") < calls.index("deactivate")
        elif step in {"activate", "mount"}:
            assert "Shutdown" in calls
            assert "Create" not in calls


@pytest.mark.parametrize("step", ["start", "Connect", "activate", "mount", "Create"])
async def test_a_cancellation_at_any_step_leaves_nothing(place: Place, step: str) -> None:
    async with open_made(place) as made:
        reached = trio.Event()

        async def hang(_: Message) -> Message:
            reached.set()
            await trio.sleep_forever()
            raise AssertionError

        more: dict[str, object] = {"runtime": "fake.sleeps.v1"} if step == "start" else {}
        if step in {"Connect", "Create"}:
            made.shim.behave[step] = hang
        elif step != "start":
            made.mounts.gate[step] = trio.Event()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: made.create(**more))  # type: ignore[arg-type]
                with trio.fail_after(10):
                    if step in {"Connect", "Create"}:
                        await reached.wait()
                    elif step == "start":
                        while not (place.path / "pid").exists():
                            await trio.testing.wait_all_tasks_blocked(0.02)
                    else:
                        while step not in made.shim.calls:
                            await trio.testing.wait_all_tasks_blocked(0.01)
                scope.cancel()
        assert made.left() == []


async def test_an_activation_that_is_there_already_is_used_and_left(place: Place) -> None:
    async with open_made(place) as made:
        made.shim.behave["Shutdown"] = stay
        kept = await made.mounts.activate("ns", "t1", [Mount("erofs", "/other")], ActivateOptions())
        made.shim.behave["Create"] = refuse
        with pytest.raises(Unknown):
            await made.create()
        assert await made.mounts.info("ns", "t1") == kept
        del made.shim.behave["Create"]
        task = await made.create()
        await task.delete()  # type: ignore[attr-defined]
        assert await made.mounts.info("ns", "t1") == kept
        made.mounts.fail["info"] = Unknown("gone")
        with pytest.raises(Unknown, match="gone"):
            await made.create()
        assert made.left() == [one.mount_point for one in kept.active]


async def test_mounts_that_need_no_manager_go_to_the_shim_unchanged(place: Place) -> None:
    async with open_made(place) as made:
        task = await made.create(BIND)
        assert made.shim.calls == ["Connect", "activate", "Create"]
        await task.delete()  # type: ignore[attr-defined]
        assert "deactivate" not in made.shim.calls
        assert made.left() == []


async def test_an_activation_is_undone_by_whichever_manager_deletes_the_task(place: Place) -> None:
    async with open_made(place) as made:
        await made.create()
        config = made.manager.config
        async with open_manager(attrs.evolve(config, activations=None)) as without:
            (await without.attach("ns", "t1")).detach()
        async with open_manager(config) as other:
            await other.delete("ns", "t1")
        assert made.left() == []


async def test_without_a_mount_manager_nothing_is_done_and_nothing_undone(place: Place) -> None:
    answer(place)
    async with open_fake_shim(place.path / "s") as shim, open_manager(place.config) as manager:
        got: list[Message] = []

        async def note(request: Message) -> Message:
            got.append(request)
            del shim.behave["Create"]
            return await shim.answer("Create", request)

        shim.behave["Create"] = note
        inputs = TaskInputs(rootfs=[CHAIN])
        task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1", prepare=lambda _: inputs)
        assert isinstance(got[0], CreateTaskRequest)
        assert list(got[0].rootfs) == [CHAIN]
        await task.delete()
    assert place.left == []


def claim(*types: str, transforms: tuple[str, ...] = ()) -> Any:
    found = mount_pb2.MountCapabilities(types=types, transforms=transforms)
    return typeurl.pack(found, typeurl.GOOGLE_PREFIX)


def annotated(place: Place, text: str | None) -> None:
    annotations = {} if text is None else {"containerd.io/runtime-allow-mounts": text}
    (place.path / "-info").write_bytes(RuntimeInfo(name="fake", annotations=annotations).SerializeToString())


UNREADABLE = Any(type_url="containerd.types.MountCapabilities", value=b"\xff")


@pytest.mark.parametrize(
    ("extensions", "annotation", "claims", "asked"),
    [
        ([claim()], "erofs", MountClaims(), False),
        ([claim("erofs", "loop")], "mkdir/*", MountClaims(["erofs", "loop"]), False),
        ([claim(transforms=("format", "mkdir"))], None, MountClaims([], ["format", "mkdir"]), False),
        ([Any(type_url="a.Other", value=b"x"), claim("erofs")], None, MountClaims(["erofs"]), False),
        ([Any(type_url="x.y/containerd.types.MountCapabilities")], "erofs", MountClaims(), False),
        ([UNREADABLE], "erofs", MountClaims(), False),
        ([], "erofs,mkdir/*", MountClaims(["erofs"], ["mkdir"]), True),
        ([], None, MountClaims(), True),
    ],
)
async def test_row_S2_what_a_shim_claims_decides_what_is_left_to_it(
    place: Place, extensions: list[Any], annotation: str | None, claims: MountClaims, asked: bool
) -> None:
    answer(place, *extensions)
    annotated(place, annotation)
    async with open_made(place) as made:
        made.shim.behave["Shutdown"] = stay
        for _ in range(2):
            task = await made.create(EROFS, BIND)
            assert made.mounts.options[-1].claims == claims
            await task.delete()  # type: ignore[attr-defined]
        ran = (place.path / "runs").read_text().split("\n")
        assert sum("-info" in line for line in ran) == asked


async def test_the_deprecated_claims_are_asked_once_and_a_failure_again(place: Place) -> None:
    answer(place)
    config = attrs.evolve(place.config, activations=MemoryActivations())
    async with open_manager(config) as manager:
        deprecated = manager._deprecated
        assert await deprecated.claims("fake.given.v1") == MountClaims()  # there is no answer file: a failure
        annotated(place, "erofs")
        assert await deprecated.claims("fake.given.v1") == MountClaims(["erofs"])
        annotated(place, None)
        assert await deprecated.claims("fake.given.v1") == MountClaims(["erofs"])
        for exempt in ("io.containerd.runc.v2", "io.containerd.runhcs.v1"):
            assert await deprecated.claims(exempt) == MountClaims()
    assert (place.path / "runs").read_text().count("-info -info") == 2
    async with open_manager(config) as manager:
        assert await manager._deprecated.claims("fake.given.v1") == MountClaims()
        annotated(place, "erofs")  # the answer without it was kept
        assert await manager._deprecated.claims("fake.given.v1") == MountClaims()


GROUPED = b'{"annotations":{"io.containerd.runc.v2.group":"lead"}}'


async def test_a_member_joins_the_leaders_shim_and_what_it_can_do(place: Place) -> None:
    answer(place, claim("erofs"))
    async with open_made(place) as made:
        create = made.manager.create
        made.shim.behave["Shutdown"] = stay
        inputs = TaskInputs(rootfs=[CHAIN])
        lead = await create("ns", "lead", b"{}", runtime="fake.given.v1")
        member = await create("ns", "m1", GROUPED, runtime="fake.given.v1", prepare=lambda _: inputs)
        assert made.mounts.options[-1].claims == MountClaims(["erofs"])
        assert (lead.sandbox, member.sandbox) == ("", "lead")
        second = await create("ns", "m2", b"{}", runtime="fake.given.v1", sandbox="lead")
        assert Path(second.bundle.file("bootstrap.json")).read_bytes() == (place.path / "start").read_bytes()
        assert (place.path / "runs").read_text().count("start -") == 1
        await lead.delete()
        third = await create("ns", "m3", GROUPED, runtime="fake.given.v1")  # by way of a member
        assert (place.path / "runs").read_text().count("start -") == 1
        for task in (member, second, third):
            assert (place.path / "s").exists()
            await task.delete()
        assert made.left() == []


async def test_a_member_that_fails_leaves_the_leader_alone(place: Place) -> None:
    answer(place)
    async with open_made(place) as made:
        lead = await made.manager.create("ns", "lead", b"{}", runtime="fake.given.v1")
        made.shim.behave |= {"Create": refuse, "Shutdown": stay}
        with pytest.raises(Unknown):
            await made.manager.create("ns", "m1", GROUPED, runtime="fake.given.v1")
        assert (await lead.state()).id == "t1"
        assert os.listdir(made.manager.config.layout.bundles("ns")) == ["lead"]
        del made.shim.behave["Create"]
        await lead.delete()


async def test_a_member_whose_leader_is_dead_starts_a_shim(place: Place) -> None:
    answer(place)
    async with open_made(place) as made:
        lead = await made.manager.create("ns", "lead", b"{}", runtime="fake.given.v1")
        dead = Answer(3, f"unix://{place.path}/nobody")
        Path(lead.bundle.file("bootstrap.json")).write_bytes(answer_to_json(dead))
        member = await made.manager.create("ns", "m1", GROUPED, runtime="fake.given.v1")
        assert member.sandbox == ""
        assert (place.path / "runs").read_text().count("start -") == 2
        await member.delete()


@pytest.mark.parametrize(("uses", "sandbox"), [(2, "lead"), (3, "nobody")])
async def test_only_a_shim_that_promised_it_is_joined(place: Place, uses: int, sandbox: str) -> None:
    answer(place, version=uses)
    async with open_made(place) as made:
        await made.manager.create("ns", "lead", b"{}", runtime="fake.given.v1")
        await made.manager.create("ns", "m1", b"{}", runtime="fake.given.v1", sandbox=sandbox)
        assert (place.path / "runs").read_text().count("start -") == 2


IDMAPPED = b'{"mounts":[{"destination":"/x","uidMappings":[{"containerID":0,"hostID":1,"size":1}]}]}'


def featured(place: Place, features: bytes | None) -> None:
    info = RuntimeInfo(name="fake")
    if features is not None:
        info.features.CopyFrom(typeurl.pack_json(typeurl.FEATURES_URL, features))
    (place.path / "-info").write_bytes(info.SerializeToString())


@pytest.mark.parametrize(
    ("features", "allowed"),
    [
        (None, True),
        (b'{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}', True),
        (b'{"linux":{"mountExtensions":{"idmap":{"enabled":false}}}}', False),
        (b'{"linux":{}}', False),
        (b"junk", False),
    ],
)
async def test_id_mapped_mounts_are_refused_when_the_features_say_so(
    place: Place, features: bytes | None, allowed: bool
) -> None:
    async with open_made(place) as made:
        featured(place, features)
        if allowed:
            await made.manager.create("ns", "t1", IDMAPPED, runtime="fake.given.v1")
            return
        with pytest.raises(FailedPrecondition, match="id-mapped mounts"):
            await made.manager.create("ns", "t1", IDMAPPED, runtime="fake.given.v1")
        assert "Create" not in made.shim.calls
        assert made.left() == []


async def test_a_shim_that_does_not_know_the_question_is_left_alone(place: Place) -> None:
    async with open_made(place) as made:
        await made.manager.create("ns", "t1", IDMAPPED, runtime="fake.given.v1")


async def test_information_is_kept_by_options_and_runtime_options_come_first(place: Place) -> None:
    featured(place, None)
    async with open_made(place) as made:
        runtime, task = Any(type_url="a.A", value=b"1"), Any(type_url="a.B", value=b"2")
        infos = made.manager._runtimes
        for _ in range(2):
            await infos.info("fake.given.v1", runtime, task)
        assert (place.path / "info-stdin").read_bytes() == runtime.SerializeToString()
        await infos.info("fake.given.v1", None, task)
        assert (place.path / "info-stdin").read_bytes() == task.SerializeToString()
        await made.manager.runtime_info("fake.given.v1")
        assert (place.path / "info-stdin").read_bytes() == b""
    assert (place.path / "runs").read_text().count("-info -info") == 3


async def test_named_runtimes_are_asked_at_opening_and_only_they_may_be_required(place: Place) -> None:
    answer(place)
    featured(place, None)
    config = attrs.evolve(
        place.config, runtimes=("fake.given.v1", "fake.missing.v1", "fake.fails.v1"), require_known=True
    )
    async with open_manager(config) as manager:
        assert (place.path / "runs").read_text().count("-info -info") == 1
        await manager.runtime_info("fake.given.v1")
        assert (place.path / "runs").read_text().count("-info -info") == 1
        with pytest.raises(
            FailedPrecondition, match=r"'fake.junk.v1' is not among those that are allowed \(fake.given"
        ):
            await manager.create("ns", "t1", b"{}", runtime="fake.junk.v1")
        with pytest.raises(NotFound):
            await manager.create("ns", "t1", b"{}", runtime="fake.missing.v1")
    assert not os.path.exists(config.layout.bundles("ns"))


@pytest.mark.parametrize("spec", [b"", b"[]", b"{", b'{"mounts":5}', b'{"mounts":[5]}'])
async def test_a_specification_that_is_none_is_refused_and_leaves_nothing(place: Place, spec: bytes) -> None:
    async with open_made(place) as made:
        with pytest.raises(InvalidArgument):
            await made.manager.create("ns", "t1", spec, runtime="fake.given.v1")
        assert made.left() == []


def no_space(bundle: Bundle) -> TaskInputs:
    raise OSError(28, "No space left on device", bundle.path)


async def test_a_full_disk_is_said_and_leaves_nothing(place: Place) -> None:
    async with open_made(place) as made:
        with pytest.raises(OSError, match="No space"):
            await made.create(prepare=no_space)
        assert made.left() == []
