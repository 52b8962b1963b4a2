from __future__ import annotations

import json

import pytest

from shim.errors import InvalidArgument
from shim.manager.spec import CAPABILITIES, RunSpec, cgroups_path, default_spec, remapped_root_group


def spec_of(**changes: object) -> dict[str, dict[str, object]]:
    run = RunSpec(**{"namespace": "default", "id": "t1", "args": ["true"], **changes})  # type: ignore[arg-type]
    document: dict[str, dict[str, object]] = json.loads(default_spec(run))
    return document


def test_it_is_what_users_of_ctr_expect() -> None:
    document = spec_of()
    process, linux = document["process"], document["linux"]
    assert process["args"] == ["true"]
    assert process["noNewPrivileges"] is True
    assert process["capabilities"] == {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")}
    assert "/proc/kcore" in str(linux["maskedPaths"])
    assert "/proc/sys" in str(linux["readonlyPaths"])
    assert linux["namespaces"] == [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]
    assert document["root"] == {"path": "rootfs", "readonly": False}


def test_nothing_in_it_needs_cap_sys_resource() -> None:
    assert "oomScoreAdj" not in spec_of()["process"]
    assert spec_of(open_files_limit=512)["process"]["rlimits"] == [{"type": "RLIMIT_NOFILE", "hard": 512, "soft": 512}]
    assert spec_of(open_files_limit=20_000)["process"]["rlimits"] == [
        {"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}
    ]


def test_two_tasks_never_share_a_cgroup() -> None:
    assert cgroups_path("a-b", "c") != cgroups_path("a", "b-c")
    assert cgroups_path("a", "b").count("/") == 1


def test_terminal_and_environment() -> None:
    process = spec_of(terminal=True, env={"A": "b=c", "PATH": "/bin"})["process"]
    assert process["terminal"] is True
    assert process["env"] == ["PATH=/bin", "HOSTNAME=t1", "TERM=xterm", "A=b=c"]


@pytest.mark.parametrize("changes", [{"args": []}, {"cwd": "relative"}, {"env": {"": "x"}}, {"env": {"A=B": "x"}}])
def test_what_no_runtime_would_take_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        spec_of(**changes)


USER = {"namespaces": [{"type": "pid"}, {"type": "user"}]}
MAPPING = {"containerID": 0, "hostID": 100_000, "size": 65_536}


@pytest.mark.parametrize(
    ("linux", "group"),
    [
        ({**USER, "gidMappings": [MAPPING]}, 100_000),
        ({**USER, "gidMappings": [{"containerID": 5, "hostID": 1, "size": 1}, MAPPING]}, 100_000),
        ({"namespaces": [{"type": "pid"}], "gidMappings": [MAPPING]}, None),
        ({**USER, "gidMappings": [{"containerID": 5, "hostID": 1, "size": 1}]}, None),
        (USER, None),
        (None, None),
        ({"namespaces": "x"}, None),
    ],
)
def test_the_group_that_must_enter_the_bundle(linux: object, group: int | None) -> None:
    assert remapped_root_group(json.dumps({"linux": linux}).encode()) == group


@pytest.mark.parametrize("spec", [b"", b"[]", b"{", b"\xff"])
def test_a_spec_that_is_no_object_is_refused(spec: bytes) -> None:
    with pytest.raises(InvalidArgument):
        remapped_root_group(spec)
