"""Stats: the figures of a container's cgroup in the messages of its kind, v1 or v2 (protocol.md 6.4 and 6.5).

No runtime process and no thread: some thirty small files of kernfs are read on the loop.  They are never on a disk,
and a whole answer takes a fraction of a millisecond (0.4 ms on a 2-core machine), less than a hand-over to a thread and
back costs under load; a thread would also have to be bounded, counted and cancelled.

Missing and unreadable files are skipped; a cgroup that is gone, or was never known, is NotFound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from shim.errors import NotFound
from shim.kernel.cgroup_files import CgroupPlaces, block_device, huge_page_sizes, read_files
from shim.kernel.cgroups import UNIFIED
from shim.model import metrics, metrics_files
from shim.wire.proto import metrics_v1_pb2 as v1
from shim.wire.proto import metrics_v2_pb2 as v2
from shim.wire.typeurl import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from google.protobuf.any_pb2 import Any
    from google.protobuf.message import Message

_RDMA_MAX: Final = 2**32 - 1
"""The largest number of an RdmaEntry, and what its `max` is on the wire."""


class _RdmaFields(TypedDict):
    device: str
    hca_handles: int
    hca_objects: int


def read_stats(places: CgroupPlaces | None) -> Any:
    """The figures now, as the packed Metrics of the cgroup's kind.

    Raises NotFound when no cgroup is known or none of its directories exists any more.
    """
    if places is None:
        raise NotFound("cgroup does not exist")
    sizes = huge_page_sizes()
    if places.unified:
        texts = read_files(places.directories.get(UNIFIED, ""), metrics_files.unified_files(sizes))
        if texts is None:
            raise NotFound("cgroup does not exist")
        return pack(unified_metrics(texts, sizes))
    found = [
        read_files(places.directories[controller], names)
        for controller, names in metrics_files.legacy_files(sizes).items()
        if controller in places.directories
    ]
    existing = [texts for texts in found if texts is not None]
    if not existing:
        raise NotFound("cgroup does not exist")
    return pack(legacy_metrics({name: text for texts in existing for name, text in texts.items()}, sizes, block_device))


def _fill(message: Message, fields: Iterable[tuple[str, int | None]]) -> None:
    for field, value in fields:
        if value:
            setattr(message, field, value)


def _by_key(text: str, keys: Mapping[str, str]) -> list[tuple[str, int | None]]:
    values = metrics.flat(text)
    return [(field, values.get(key)) for field, key in keys.items()]


def _by_file(files: Mapping[str, str], names: Mapping[str, str]) -> list[tuple[str, int | None]]:
    return [(field, metrics.number(files.get(name, ""))) for field, name in names.items()]


def legacy_metrics(
    files: Mapping[str, str], page_sizes: Sequence[str], device_name: Callable[[int, int], str]
) -> v1.Metrics:
    """The message of a v1 cgroup from the texts of its files, by name; `device_name` from major and minor."""
    message = v1.Metrics()
    _legacy_cpu(message.cpu, files)
    if any(name.startswith("memory.") for name in files):
        _legacy_memory(message.memory, files)
    if "memory.oom_control" in files:
        message.memory_oom_control.SetInParent()
        _fill(message.memory_oom_control, _by_key(files["memory.oom_control"], metrics_files.LEGACY_OOM_KEYS))
    if "pids.current" in files:
        limit = metrics.number(files.get("pids.max", ""))
        message.pids.SetInParent()
        _fill(message.pids, _by_file(files, {"current": "pids.current"}))
        message.pids.limit = 0 if limit in (None, metrics.WORD_MAX) else limit
    if any(name.startswith("blkio.") for name in files):
        message.blkio.SetInParent()
        if not _legacy_blkio(message.blkio, files, metrics_files.LEGACY_BLKIO_FILES, device_name):
            _legacy_blkio(message.blkio, files, metrics_files.LEGACY_THROTTLE_FILES, device_name)
    if "rdma.current" in files:
        message.rdma.current.extend(v1.RdmaEntry(**entry) for entry in _rdma(files, "rdma.current"))
        message.rdma.limit.extend(v1.RdmaEntry(**entry) for entry in _rdma(files, "rdma.max"))
    for size in page_sizes:
        names = {field: f"hugetlb.{size}.{suffix}" for field, suffix in metrics_files.LEGACY_HUGETLB_FILES.items()}
        if any(name in files for name in names.values()):
            _fill(message.hugetlb.add(pagesize=size), _by_file(files, names))
    return message


def _legacy_cpu(message: v1.CPUStat, files: Mapping[str, str]) -> None:
    ticks = metrics.flat(files.get("cpuacct.stat", ""))
    message.usage.SetInParent()
    message.usage.total = metrics.number(files.get("cpuacct.usage", "")) or 0
    message.usage.user = min(ticks.get("user", 0) * metrics.TICK_NS, metrics.WORD_MAX)
    message.usage.kernel = min(ticks.get("system", 0) * metrics.TICK_NS, metrics.WORD_MAX)
    message.usage.per_cpu.extend(metrics.numbers(files.get("cpuacct.usage_percpu", "")))
    message.throttling.SetInParent()
    _fill(message.throttling, _by_key(files.get("cpu.stat", ""), metrics_files.LEGACY_THROTTLE_KEYS))


def _legacy_memory(message: v1.MemoryStat, files: Mapping[str, str]) -> None:
    _fill(message, _by_key(files.get("memory.stat", ""), metrics_files.LEGACY_MEMORY_KEYS))
    # All four are there whatever could be read: clients follow them without asking.
    entries = {
        "usage": message.usage,
        "swap": message.swap,
        "kernel": message.kernel,
        "kernel_tcp": message.kernel_tcp,
    }
    for field, prefix in metrics_files.LEGACY_MEMORY_ENTRIES.items():
        names = {part: f"{prefix}.{suffix}" for part, suffix in metrics_files.LEGACY_ENTRY_FILES.items()}
        entries[field].SetInParent()
        _fill(entries[field], _by_file(files, names))


def _legacy_blkio(
    message: v1.BlkIOStat,
    files: Mapping[str, str],
    names: Mapping[str, str],
    device_name: Callable[[int, int], str],
) -> bool:
    """Whether any of the files had a line."""
    known: dict[tuple[int, int], str] = {}
    some = False
    for field, name in names.items():
        entries = getattr(message, field)
        for line in metrics.device_lines(files.get(name, "")):
            device = (line.major, line.minor)
            if device not in known:
                known[device] = device_name(*device)
            entries.add(op=line.operation, device=known[device], major=line.major, minor=line.minor, value=line.value)
            some = True
    return some


def _rdma(files: Mapping[str, str], name: str) -> list[_RdmaFields]:
    return [
        {
            "device": device,
            "hca_handles": min(values.get("hca_handle", 0), _RDMA_MAX),
            "hca_objects": min(values.get("hca_object", 0), _RDMA_MAX),
        }
        for device, values in metrics.nested(files.get(name, ""))
    ]


def unified_metrics(files: Mapping[str, str], page_sizes: Sequence[str]) -> v2.Metrics:
    """The message of a v2 cgroup from the texts of its files, by name."""
    message = v2.Metrics()
    for part in (message.pids, message.cpu, message.memory, message.io, message.rdma):
        part.SetInParent()
    _fill(message.pids, _by_file(files, {"current": "pids.current", "limit": "pids.max"}))
    _fill(message.cpu, _by_key(files.get("cpu.stat", ""), _same(metrics_files.UNIFIED_CPU_KEYS)))
    _fill(message.memory, _by_key(files.get("memory.stat", ""), _same(metrics_files.UNIFIED_MEMORY_KEYS)))
    _fill(message.memory, _by_file(files, metrics_files.UNIFIED_MEMORY_FILES))
    for psi, name in (
        (message.cpu, "cpu.pressure"),
        (message.memory, "memory.pressure"),
        (message.io, "io.pressure"),
    ):
        _unified_pressure(psi, files.get(name, ""))
    if files.get("memory.events"):
        message.memory_events.SetInParent()
        _fill(message.memory_events, _by_key(files["memory.events"], _same(metrics_files.UNIFIED_EVENT_KEYS)))
    for name, values in metrics.nested(files.get("io.stat", "")):
        if (device := metrics.device(name)) is not None:
            entry = message.io.usage.add(major=device[0], minor=device[1])
            _fill(entry, [(key, values.get(key)) for key in metrics_files.UNIFIED_IO_KEYS])
    message.rdma.current.extend(v2.RdmaEntry(**entry) for entry in _rdma(files, "rdma.current"))
    message.rdma.limit.extend(v2.RdmaEntry(**entry) for entry in _rdma(files, "rdma.max"))
    for size in page_sizes:  # one for each size, as the Go shim does, also where the controller is off
        entry_ = message.hugetlb.add(pagesize=size)
        _fill(entry_, _by_file(files, {"current": f"hugetlb.{size}.current", "max": f"hugetlb.{size}.max"}))
        _fill(entry_, _by_key(files.get(f"hugetlb.{size}.events", ""), {"failcnt": "max"}))
    return message


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def _unified_pressure(message: v2.CPUStat | v2.MemoryStat | v2.IOStat, text: str) -> None:
    for name, line in metrics.pressures(text).items():
        if name in ("some", "full"):
            data = message.psi.some if name == "some" else message.psi.full
            data.avg10, data.avg60, data.avg300, data.total = line.avg10, line.avg60, line.avg300, line.total
            data.SetInParent()
