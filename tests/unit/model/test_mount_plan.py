"""Who makes what: the rows of protocol.md 9.7 (N) one by one, then that nothing is done twice and nothing left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.model.mount_plan import Claims, MountPlan, PlannedMount, plan_mounts
from shim.model.mount_types import TRANSFORMS, MountType, has_template, split_type
from shim.model.mounts import Mount

BIND, OVERLAY, EROFS, EXT4, LOOP = (Mount(kind, "/s") for kind in ("bind", "overlay", "erofs", "ext4", "loop"))
TEMPLATED = Mount("format/mkdir/overlay", "overlay", options=("lowerdir={{ overlay 0 1 }}",))
HANDLERS = frozenset({"erofs", "loop"})


def plan(
    *mounts: Mount, types: tuple[str, ...] = (), transforms: tuple[str, ...] = (), temporary: bool = False
) -> MountPlan | None:
    return plan_mounts(mounts, handlers=HANDLERS, claims=Claims(types, transforms), temporary=temporary)


def summary(made: MountPlan | None) -> tuple[list[str], str, list[str]]:
    """Types made by the manager, the one handed on in part as `applied>rest`, types handed on as they came."""
    assert made is not None
    partial = made.partial
    between = "" if partial is None else f"{'/'.join(partial.transforms)}>{partial.rest.text()}"
    return [each.mount.type for each in made.active], between, [each.type for each in made.system]


def test_nothing_that_needs_the_manager() -> None:
    assert plan() is None
    assert plan(temporary=True) is None
    assert plan(BIND) is None
    assert plan(OVERLAY, BIND, EXT4) is None
    assert plan(EROFS, types=("erofs",)) is None
    assert plan(Mount("format/mkdir/overlay", ""), transforms=("format", "mkdir")) is None


def test_an_unclaimed_transform_makes_it_the_first_system_mount() -> None:
    assert summary(plan(BIND, TEMPLATED)) == (["bind"], "format/mkdir>overlay", [])
    assert summary(plan(Mount("mkdir/bind", ""))) == ([], "mkdir>bind", [])


def test_an_unclaimed_handler_makes_the_next_one_the_first_system_mount() -> None:
    assert summary(plan(EROFS)) == (["erofs"], "", [])
    assert summary(plan(BIND, EROFS, OVERLAY)) == (["bind", "erofs"], "", ["overlay"])
    assert summary(plan(Mount("mkfs/loop", ""), EXT4)) == (["mkfs/loop"], "", ["ext4"])


def test_a_claim_is_only_honoured_if_no_later_mount_needs_the_manager() -> None:
    assert summary(plan(EROFS, LOOP, types=("erofs",))) == (["erofs", "loop"], "", [])
    assert summary(plan(LOOP, EROFS, types=("erofs",))) == (["loop"], "", ["erofs"])
    assert summary(plan(EROFS, TEMPLATED, types=("erofs",))) == (["erofs"], "format/mkdir>overlay", [])


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [
        ((), (["bind"], "format/mkdir>overlay", [])),
        (("format",), (["bind"], "format/mkdir>overlay", [])),
        (("mkdir",), (["bind"], "format>mkdir/overlay", [])),
        (("format", "mkdir"), None),
        (("mkfs",), (["bind"], "format/mkdir>overlay", [])),
    ],
)
def test_claimed_transforms_stay_only_as_a_tail(
    claimed: tuple[str, ...], expected: tuple[list[str], str, list[str]] | None
) -> None:
    made = plan(BIND, TEMPLATED, transforms=claimed)
    assert (None if made is None else summary(made)) == expected


def test_transforms_of_mounts_before_the_first_system_mount_are_all_the_managers() -> None:
    formatted = Mount("format/mkdir/bind", "")
    made = plan(formatted, EROFS, OVERLAY, transforms=("format", "mkdir"))
    assert made is not None
    assert made.active[0] == PlannedMount(formatted, ("format", "mkdir"), MountType((), "bind"))


def test_the_whole_type_claims_its_transforms_and_the_kind_its_handler() -> None:
    assert plan(BIND, TEMPLATED, types=("format/mkdir/overlay",)) is None
    assert summary(plan(BIND, TEMPLATED, types=("overlay", "mkdir/overlay"))) == (["bind"], "format/mkdir>overlay", [])
    assert summary(plan(Mount("format/erofs", ""), types=("format/erofs",))) == (["format/erofs"], "", [])
    assert summary(plan(Mount("format/erofs", ""), types=("erofs",))) == ([], "format>erofs", [])


def test_mounts_after_the_first_system_mount_go_as_they_came() -> None:
    later = Mount("mkdir/bind", "/x", options=("X-containerd.mkdir.path=/a",))
    made = plan(EROFS, OVERLAY, later, transforms=("mkdir",))
    assert made is not None
    assert made.system == (OVERLAY, later)


def test_temporary_means_all_of_them_and_a_bind_of_the_last() -> None:
    made = plan(BIND, TEMPLATED, types=("bind", "overlay"), transforms=("format", "mkdir"), temporary=True)
    assert summary(made) == (["bind", "format/mkdir/overlay"], "", [])
    assert made is not None
    assert made.handed_on(None, "/t/1") == (Mount("bind", "/t/1", options=("rbind",)),)


def test_what_is_handed_on_is_in_order() -> None:
    made = plan(BIND, TEMPLATED)
    assert made is not None
    formatted = Mount("overlay", "overlay")
    assert made.handed_on(formatted, "/t/1") == (formatted,)
    assert not made.bind_last


def test_an_unknown_transform_ends_the_parsing_and_is_no_reason_for_the_manager() -> None:
    assert plan(Mount("other/erofs", "")) is None
    assert summary(plan(Mount("format/other/overlay", ""))) == ([], "format>other/overlay", [])


def test_a_template_over_the_managers_mounts_is_the_managers() -> None:
    """The difference to 2.4.2: the shim would count mounts that it never sees."""
    both = ("format", "mkdir")
    assert summary(plan(EROFS, TEMPLATED, transforms=both)) == (["erofs"], "format>mkdir/overlay", [])
    assert summary(plan(EROFS, BIND, TEMPLATED, transforms=both)) == (["erofs", "bind"], "format>mkdir/overlay", [])
    without = Mount("format/overlay", "overlay")
    assert summary(plan(EROFS, without, transforms=both)) == (["erofs"], "", ["format/overlay"])


KINDS = ("bind", "overlay", "erofs", "loop", "ext4")
some_types = st.builds(
    lambda transforms, kind: "/".join([*transforms, kind]),
    st.lists(st.sampled_from(TRANSFORMS), max_size=3),
    st.sampled_from(KINDS),
)
some_mounts = st.lists(
    st.builds(
        lambda kind, templated: Mount(kind, "{{ mount 0 }}" if templated and "format" in kind else "/s"),
        some_types,
        st.booleans(),
    ),
    max_size=6,
)
some_claims = st.builds(
    Claims,
    st.frozensets(st.one_of(st.sampled_from(KINDS), some_types), max_size=4),
    st.frozensets(st.sampled_from(TRANSFORMS)),
)


@given(some_mounts, st.frozensets(st.sampled_from(["erofs", "loop", "overlay"])), some_claims, st.booleans())
def test_nothing_is_done_twice_and_nothing_is_left_out(
    mounts: list[Mount], handlers: frozenset[str], claims: Claims, temporary: bool
) -> None:
    made = plan_mounts(mounts, handlers=handlers, claims=claims, temporary=temporary)
    if made is None:
        made = MountPlan((), None, tuple(mounts))
        assert not (temporary and mounts)
    manager = [*made.active, *([made.partial] if made.partial else [])]
    assert [each.mount for each in manager] + list(made.system) == mounts

    # Every transform and every kind is done once, by one of the two, in the order of the type.
    done = [[*each.transforms, each.rest.text()] for each in made.active]
    rests = [made.partial.rest] if made.partial else []
    if made.partial:
        done.append([*made.partial.transforms, *made.partial.rest.transforms, made.partial.rest.kind])
    for mount in made.system:
        rest = split_type(mount.type)
        rests.append(rest)
        done.append([*rest.transforms, rest.kind])
    assert ["/".join(each) for each in done] == [mount.type for mount in mounts]
    assert all(not each.rest.transforms for each in made.active)

    # What the shim gets it claimed, or anybody can do.
    for mount, rest in zip(mounts[len(made.active) :], rests, strict=True):
        whole = mount.type in claims.types
        assert all(whole or name in claims.transforms for name in rest.transforms)
        assert rest.kind not in handlers or rest.kind in claims.types

    # No template reaches the shim that counts mounts which the shim never sees.
    if made.active:
        assert not any(has_template(mount.source) for mount in made.system if "format" in mount.type)

    # The manager does nothing that the shim could have done: its last step is unclaimed, or needs what is.
    if made.partial:
        kind = split_type(made.partial.mount.type)
        last = len(made.partial.transforms) - 1
        assert not claims.transforms_of(kind)[last] or (made.active and kind.transforms[last] == "format")
    elif made.active and not temporary:
        last_kind = made.active[-1].rest.kind
        assert last_kind in handlers
        assert not claims.handles(last_kind)
    assert made.bind_last == (temporary and bool(mounts))
