"""Which files of a cgroup hold which figures: the tables behind Stats (protocol.md 6.4 and 6.5).

Fields are named as in the messages, keys as the kernel writes them.  A file that is not there is skipped.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Legacy (v1).

LEGACY_MEMORY_ENTRIES: Final[Mapping[str, str]] = MappingProxyType(
    {"usage": "memory", "swap": "memory.memsw", "kernel": "memory.kmem", "kernel_tcp": "memory.kmem.tcp"}
)
"""Field of MemoryStat to the prefix of its four files."""
LEGACY_ENTRY_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {"usage": "usage_in_bytes", "max": "max_usage_in_bytes", "failcnt": "failcnt", "limit": "limit_in_bytes"}
)
"""Field of MemoryEntry to what follows the prefix."""
_LEGACY_OWN_MEMORY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pg_pg_in": "pgpgin",
        "pg_pg_out": "pgpgout",
        "pg_fault": "pgfault",
        "pg_maj_fault": "pgmajfault",
    }
    | {
        name: name
        for name in (
            *("cache", "rss", "rss_huge", "mapped_file", "dirty", "writeback"),
            *("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"),
        )
    }
)
LEGACY_MEMORY_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hierarchical_memory_limit": "hierarchical_memory_limit",
        "hierarchical_swap_limit": "hierarchical_memsw_limit",
        **_LEGACY_OWN_MEMORY,
        **{f"total_{field}": f"total_{key}" for field, key in _LEGACY_OWN_MEMORY.items()},
    }
)
"""Field of MemoryStat to its key in memory.stat."""
LEGACY_THROTTLE_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {"periods": "nr_periods", "throttled_periods": "nr_throttled", "throttled_time": "throttled_time"}
)
"""Field of Throttle to its key in cpu.stat."""
LEGACY_OOM_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {name: name for name in ("oom_kill_disable", "under_oom", "oom_kill")}
)
"""Field of MemoryOomControl to its key in memory.oom_control."""
LEGACY_BLKIO_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "io_service_bytes_recursive": "blkio.io_service_bytes_recursive",
        "io_serviced_recursive": "blkio.io_serviced_recursive",
        "io_queued_recursive": "blkio.io_queued_recursive",
        "io_service_time_recursive": "blkio.io_service_time_recursive",
        "io_wait_time_recursive": "blkio.io_wait_time_recursive",
        "io_merged_recursive": "blkio.io_merged_recursive",
        "io_time_recursive": "blkio.time_recursive",
        "sectors_recursive": "blkio.sectors_recursive",
    }
)
"""Field of BlkIOStat to its file, as schedulers that count for themselves write them."""
LEGACY_THROTTLE_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "io_service_bytes_recursive": "blkio.throttle.io_service_bytes",
        "io_serviced_recursive": "blkio.throttle.io_serviced",
    }
)
"""What stands in for them when they are all absent or empty."""
LEGACY_HUGETLB_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {"usage": "usage_in_bytes", "max": "max_usage_in_bytes", "failcnt": "failcnt"}
)
"""Field of HugetlbStat to what follows the size."""

# Unified (v2).

UNIFIED_CPU_KEYS: Final = (
    *("usage_usec", "user_usec", "system_usec", "nr_periods", "nr_throttled", "throttled_usec"),
    *("nr_bursts", "burst_usec"),
)
"""Fields of CPUStat, and keys of cpu.stat by the same names."""
UNIFIED_MEMORY_KEYS: Final = (
    *("anon", "file", "kernel_stack", "slab", "sock", "shmem", "file_mapped", "file_dirty", "file_writeback"),
    *("anon_thp", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"),
    *("slab_reclaimable", "slab_unreclaimable", "pgfault", "pgmajfault"),
    *("workingset_refault", "workingset_activate", "workingset_nodereclaim"),
    *("pgrefill", "pgscan", "pgsteal", "pgactivate", "pgdeactivate", "pglazyfree", "pglazyfreed"),
    *("thp_fault_alloc", "thp_collapse_alloc"),
    *("workingset_refault_anon", "workingset_refault_file"),
    *("workingset_activate_anon", "workingset_activate_file"),
)
"""Fields of MemoryStat, and keys of memory.stat by the same names."""
UNIFIED_MEMORY_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "usage": "memory.current",
        "usage_limit": "memory.max",
        "max_usage": "memory.peak",
        "swap_usage": "memory.swap.current",
        "swap_limit": "memory.swap.max",
        "swap_max_usage": "memory.swap.peak",
    }
)
"""Fields of MemoryStat that have a file each."""
UNIFIED_EVENT_KEYS: Final = ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")
"""Fields of MemoryEvents, and keys of memory.events by the same names."""
UNIFIED_IO_KEYS: Final = ("rbytes", "wbytes", "rios", "wios")
"""Fields of IOEntry, and keys of io.stat by the same names."""


def legacy_files(page_sizes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The files of a v1 cgroup by controller; `page_sizes` as `page_size` writes them."""
    memory = (
        f"{prefix}.{suffix}" for prefix in LEGACY_MEMORY_ENTRIES.values() for suffix in LEGACY_ENTRY_FILES.values()
    )
    return {
        "memory": ("memory.stat", "memory.oom_control", *memory),
        "cpuacct": ("cpuacct.usage", "cpuacct.usage_percpu", "cpuacct.stat"),
        "cpu": ("cpu.stat",),
        "pids": ("pids.current", "pids.max"),
        "blkio": (*LEGACY_BLKIO_FILES.values(), *LEGACY_THROTTLE_FILES.values()),
        "rdma": ("rdma.current", "rdma.max"),
        "hugetlb": tuple(f"hugetlb.{size}.{suffix}" for size in page_sizes for suffix in LEGACY_HUGETLB_FILES.values()),
    }


def unified_files(page_sizes: Sequence[str]) -> tuple[str, ...]:
    """The files of a v2 cgroup."""
    return (
        *("pids.current", "pids.max", "cpu.stat", "cpu.pressure"),
        *("memory.stat", "memory.events", "memory.pressure", *UNIFIED_MEMORY_FILES.values()),
        *("io.stat", "io.pressure", "rdma.current", "rdma.max"),
        *(f"hugetlb.{size}.{suffix}" for size in page_sizes for suffix in ("max", "current", "events")),
    )
