"""Stats from recorded trees: every field, and nothing that is missing or odd does harm (row M7)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.errors import NotFound
from shim.kernel.cgroup_files import CgroupPlaces
from shim.model.metrics import WORD_MAX
from shim.task.stats import legacy_metrics, read_stats, unified_metrics
from shim.wire.proto import metrics_v1_pb2 as v1
from shim.wire.proto import metrics_v2_pb2 as v2
from shim.wire.typeurl import unpack

if TYPE_CHECKING:
    from google.protobuf.message import Message

DATA = Path(__file__).parents[2] / "data"
LEGACY = {path.name: path.read_text() for path in sorted((DATA / "cgroup_v1").rglob("*.*"))}
UNIFIED = {path.name: path.read_text() for path in sorted((DATA / "cgroup_v2").iterdir())}
SIZES = ["2MB", "1GB"]


def device_name(major: int, minor: int) -> str:
    return f"/dev/{major}-{minor}"


def legacy(files: dict[str, str]) -> v1.Metrics:
    return legacy_metrics(files, SIZES, device_name)


def without(files: dict[str, str], prefix: str) -> dict[str, str]:
    return {name: text for name, text in files.items() if not name.startswith(prefix)}


def empty_fields(message: Message, path: str = "") -> list[str]:
    """The fields below that carry nothing: what a recorded tree does not reach."""
    found = []
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        here = f"{path}{field.name}"
        if field.is_repeated:
            found += [here] if not len(value) else []
        elif field.message_type is not None:
            found += empty_fields(value, f"{here}.") if message.HasField(field.name) else [here]
        elif not value:
            found.append(here)
    return found


def test_legacy_fills_every_field() -> None:
    message = legacy(LEGACY)
    # `max` of pids.max is 0, kills are not disabled, and two parts are never filled.
    assert empty_fields(message) == ["pids.limit", "network", "cgroup_stats", "memory_oom_control.oom_kill_disable"]


def test_unified_fills_every_field() -> None:
    # Gone from the kernel since 5.9, which counts anonymous and file pages apart.
    gone = ["memory.workingset_refault", "memory.workingset_activate"]
    assert empty_fields(unified_metrics(UNIFIED, SIZES)) == [*gone, "network"]


def test_legacy_figures_are_in_their_fields() -> None:
    message = legacy(LEGACY)
    usage = message.cpu.usage
    assert (usage.total, list(usage.per_cpu)) == (123456789012, [100000000000, 23456789012])
    assert (usage.user, usage.kernel) == (12_340_000_000, 5_670_000_000)
    throttling = message.cpu.throttling
    assert (throttling.periods, throttling.throttled_periods, throttling.throttled_time) == (40, 7, 812345678)
    memory = message.memory
    assert (memory.cache, memory.rss, memory.pg_pg_in, memory.pg_maj_fault) == (4096, 8192, 12 * 4096, 15 * 4096)
    assert (memory.total_cache, memory.total_unevictable) == (40960, 20 * 40960)
    assert (memory.hierarchical_memory_limit, memory.hierarchical_swap_limit) == (33554432, 67108864)
    assert memory.usage == v1.MemoryEntry(usage=1001, max=1002, failcnt=1003, limit=1004)
    assert memory.swap == v1.MemoryEntry(usage=2001, max=2002, failcnt=2003, limit=2004)
    assert memory.kernel == v1.MemoryEntry(usage=3001, max=3002, failcnt=3003, limit=3004)
    assert memory.kernel_tcp == v1.MemoryEntry(usage=4001, max=4002, failcnt=4003, limit=9223372036854771712)
    assert (message.memory_oom_control.under_oom, message.memory_oom_control.oom_kill) == (1, 3)
    assert (message.pids.current, message.pids.limit) == (12, 0)
    assert message.hugetlb[1] == v1.HugetlbStat(pagesize="1GB", usage=8388608, max=16777216, failcnt=6)
    assert message.rdma.current[1] == v1.RdmaEntry(device="ocrdma1", hca_handles=3, hca_objects=2**32 - 1)
    assert message.rdma.limit[1] == v1.RdmaEntry(device="ocrdma1", hca_handles=20, hca_objects=30)
    assert list(message.blkio.sectors_recursive) == [v1.BlkIOEntry(major=8, minor=0, device="/dev/8-0", value=77)]
    assert message.blkio.io_merged_recursive[0].value == len("io_merged")


@pytest.mark.parametrize("left", ["", "Total 0\n"])
def test_legacy_throttle_files_stand_in_for_absent_and_empty_ones(left: str) -> None:
    files = {name: left if name.endswith("_recursive") else text for name, text in LEGACY.items()}
    if not left:
        files = {name: text for name, text in files.items() if not name.endswith("_recursive")}
    blkio = legacy(files).blkio
    assert [entry.op for entry in blkio.io_serviced_recursive] == ["Read", "Write", "Sync", "Async", "Discard", "Total"]
    assert blkio.io_service_bytes_recursive[1] == v1.BlkIOEntry(
        op="Write", device="/dev/254-0", major=254, minor=0, value=81920
    )


def test_legacy_without_swap_accounting_has_an_empty_entry() -> None:
    memory = legacy(without(LEGACY, "memory.memsw.")).memory
    assert memory.HasField("swap")
    assert memory.swap == v1.MemoryEntry()
    assert memory.usage.usage == 1001


def test_unified_figures_are_in_their_fields() -> None:
    message = unified_metrics(UNIFIED, SIZES)
    assert (message.pids.current, message.pids.limit) == (4, WORD_MAX)
    assert (message.cpu.usage_usec, message.cpu.throttled_usec, message.cpu.burst_usec) == (1000007, 3000, 42)
    assert message.cpu.psi.some == v2.PSIData(avg10=12.34, avg60=5.0, avg300=1.0, total=999)
    assert message.cpu.psi.HasField("full")
    memory = message.memory
    assert (memory.anon, memory.file, memory.kernel_stack) == (100, 101, 103)
    assert (memory.usage, memory.usage_limit, memory.max_usage) == (7000001, 33554432, 8000001)
    assert (memory.swap_usage, memory.swap_limit, memory.swap_max_usage) == (11, WORD_MAX, 13)
    assert memory.psi.full == v2.PSIData(avg10=0.5, avg60=0.1, avg300=0.01, total=23456)
    assert message.memory_events == v2.MemoryEvents(low=1, high=2, max=30, oom=4, oom_kill=5, oom_group_kill=6)
    assert list(message.io.usage) == [
        v2.IOEntry(major=254, minor=0, rbytes=4096, wbytes=8192, rios=1, wios=2),
        v2.IOEntry(major=8, minor=16, rbytes=1459200, wbytes=314773504, rios=192, wios=353),
    ]
    assert list(message.rdma.limit) == [v2.RdmaEntry(device="mlx4_0", hca_handles=2**32 - 1, hca_objects=2**32 - 1)]
    assert list(unified_metrics(UNIFIED, ["64KB", "2MB"]).hugetlb) == [
        v2.HugeTlbStat(pagesize="64KB"),
        v2.HugeTlbStat(pagesize="2MB", current=2097152, max=WORD_MAX, failcnt=9),
    ]


def test_unified_parts_that_are_always_there() -> None:
    message = unified_metrics({}, [])
    assert [field.name for field, _ in message.ListFields()] == ["pids", "cpu", "memory", "rdma", "io"]
    assert not message.cpu.HasField("psi")


def test_legacy_parts_that_are_always_there() -> None:
    message = legacy({})
    assert [field.name for field, _ in message.ListFields()] == ["cpu"]
    assert message.cpu.HasField("usage")
    assert message.cpu.HasField("throttling")


@pytest.mark.slow
@given(st.sets(st.sampled_from(sorted(LEGACY))))
def test_any_legacy_files_missing(names: set[str]) -> None:
    legacy({name: LEGACY[name] for name in names}).SerializeToString()


@pytest.mark.slow
@given(st.sets(st.sampled_from(sorted(UNIFIED))))
def test_any_unified_files_missing(names: set[str]) -> None:
    unified_metrics({name: UNIFIED[name] for name in names}, SIZES).SerializeToString()


ODD_LINES = st.lists(
    st.lists(
        st.one_of(
            st.sampled_from(["8:0", "Total", "max", "-1", "usage_usec", "cache", "user", "some", "rbytes="]),
            st.integers().map(str),
            st.tuples(st.sampled_from(["hca_handle", "rbytes", "avg10", "total"]), st.integers()).map(
                lambda pair: f"{pair[0]}={pair[1]}"
            ),
            st.text(max_size=6),
        ),
        max_size=4,
    ).map(" ".join),
    max_size=4,
).map("\n".join)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(sorted(LEGACY)), ODD_LINES))
def test_odd_legacy_files(files: dict[str, str]) -> None:
    legacy(files).SerializeToString()


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(sorted(UNIFIED)), ODD_LINES))
def test_odd_unified_files(files: dict[str, str]) -> None:
    unified_metrics(files, SIZES).SerializeToString()


def legacy_places(root: Path) -> CgroupPlaces:
    return CgroupPlaces({path.name: str(path) for path in root.iterdir()} | {"systemd": "/nowhere", "": "/nowhere"})


def test_a_hybrid_host_is_legacy() -> None:
    packed = read_stats(legacy_places(DATA / "cgroup_v1"))
    assert packed.type_url == "io.containerd.cgroups.v1.Metrics"
    assert unpack(packed, v1.Metrics).memory == legacy(LEGACY).memory


def test_the_unified_tree_alone() -> None:
    packed = read_stats(CgroupPlaces({"": str(DATA / "cgroup_v2"), "systemd": "/nowhere"}))
    assert packed.type_url == "io.containerd.cgroups.v2.Metrics"
    assert unpack(packed, v2.Metrics).memory == unified_metrics(UNIFIED, SIZES).memory


def test_one_hierarchy_gone_costs_its_figures_only(tmp_path: Path) -> None:
    (tmp_path / "pids.current").write_text("3\n")
    message = unpack(read_stats(CgroupPlaces({"pids": str(tmp_path), "memory": str(tmp_path / "gone")})), v1.Metrics)
    assert message.pids.current == 3
    assert not message.HasField("memory")


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "pids.current").mkdir()
    (tmp_path / "pids.max").symlink_to("pids.max")
    (tmp_path / "cpu.stat").write_bytes(b"\xff\xfe usage_usec\nuser_usec 5\n")
    message = unpack(read_stats(CgroupPlaces({"": str(tmp_path)})), v2.Metrics)
    assert message.cpu.user_usec == 5
    assert message.pids == v2.PidsStat()


@pytest.mark.parametrize(
    "places",
    [
        None,
        CgroupPlaces({}),
        CgroupPlaces({"": "/nowhere/at/all"}),
        CgroupPlaces({"memory": "/nowhere/at/all", "cpu": "/nowhere"}),
        CgroupPlaces({"memory": "/dev/null"}),
    ],
)
def test_no_cgroup(places: CgroupPlaces | None) -> None:
    with pytest.raises(NotFound, match=r"^cgroup does not exist$"):
        read_stats(places)
