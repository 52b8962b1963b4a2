"""Documents to objects and back: round trips, what the Go side writes, and that wrong files give one clear error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim import convert
from shim.errors import InvalidArgument
from shim.model.exits import ExitRecord
from shim.model.options import RuncOptions

GO_ZERO_TIME_NS = -62_135_596_800 * 1_000_000_000


def test_exit_record_of_the_go_shim() -> None:
    record = convert.exit_record_from_json(b'{"Timestamp":"2026-01-02T05:04:05.5+02:00","Pid":12,"Status":7}')
    assert record == ExitRecord(pid=12, status=7, exited_at_ns=1_767_323_045_500_000_000)
    assert record.is_sane


def test_exit_record_is_written_with_the_keys_of_the_go_shim() -> None:
    record = ExitRecord(pid=12, status=0, exited_at_ns=1_767_323_045_000_000_001, namespace="ns", id="t1", pid_start=9)
    document = json.loads(convert.exit_record_to_json(record))
    assert document == {
        "Timestamp": "2026-01-02T03:04:05.000000001Z",
        "Pid": 12,
        "Status": 0,
        "Namespace": "ns",
        "ID": "t1",
        "PidStart": 9,
        "OOMKilled": False,
    }


@given(
    st.builds(
        ExitRecord,
        pid=st.integers(1, 2**22),
        status=st.integers(0, 255),
        exited_at_ns=st.integers(0, 2**62),
        namespace=st.text(max_size=5),
        id=st.text(max_size=5),
        pid_start=st.integers(0, 2**63),
        oom_killed=st.booleans(),
    )
)
def test_exit_record_round_trip(record: ExitRecord) -> None:
    assert convert.exit_record_from_json(convert.exit_record_to_json(record)) == record


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "exit.json: "),
        (b"{", "exit.json: "),
        (b"[]", "expected an object"),
        (b"\xff", "exit.json: "),
        (b"[" * 100_000, "exit.json: "),
        (b"{}", "Pid"),
        (b'{"Timestamp":"2026-01-02T03:04:05Z","Pid":"12","Status":0}', "pid: expected int, found str"),
        (b'{"Timestamp":"2026-01-02T03:04:05Z","Pid":true,"Status":0}', "pid: expected int, found bool"),
        (b'{"Timestamp":"yesterday","Pid":1,"Status":0}', "is no RFC 3339 time"),
        (b'{"Timestamp":"2026-13-02T03:04:05Z","Pid":1,"Status":0}', "month"),
        (b'{"Timestamp":5,"Pid":1,"Status":0}', "expected a time"),
        (b'{"Timestamp":null,"Pid":1,"Status":0}', "Timestamp is missing"),
    ],
)
def test_damaged_exit_record_is_one_clear_error(data: bytes, fault: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        convert.exit_record_from_json(data)
    assert fault in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("pid", "status", "at_ns", "sane"),
    [(1, 0, 1, True), (0, 0, 1, False), (-1, 0, 1, False), (1, -1, 1, False), (1, 0, GO_ZERO_TIME_NS, False)],
)
def test_which_exit_records_are_believed(pid: int, status: int, at_ns: int, sane: bool) -> None:
    assert ExitRecord(pid, status, at_ns).is_sane is sane


def test_zero_time_of_go() -> None:
    assert convert.nanoseconds_from_rfc3339("0001-01-01T00:00:00Z") == GO_ZERO_TIME_NS
    assert convert.rfc3339_from_nanoseconds(GO_ZERO_TIME_NS) == "0001-01-01T00:00:00Z"


def test_default_options_are_an_empty_object() -> None:
    assert convert.options_to_json(RuncOptions()) == b"{}"
    assert convert.options_from_json(b"{}") == RuncOptions()


def test_options_json_uses_the_wire_names_and_ignores_others() -> None:
    options = RuncOptions(binary_name="/x/runc", systemd_cgroup=True, root="/r", io_uid=1000)
    data = convert.options_to_json(options)
    assert json.loads(data) == {"binary_name": "/x/runc", "systemd_cgroup": True, "root": "/r", "io_uid": 1000}
    assert convert.options_from_json(data[:-1] + b',"later":[1],"shim_cgroup":null}') == options


def test_every_faulty_option_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        convert.options_from_json(b'{"root":1,"systemd_cgroup":"yes"}')
    assert caught.value.message == (
        "options.json: root: expected str, found int; systemd_cgroup: expected bool, found str"
    )


def test_options_in_toml_in_both_spellings() -> None:
    body = b'BinaryName = "/x"\nroot = "/r"\nSystemdCgroup = true\nIoUid = 5\nCriuWorkPath = "/w"\nextra = 1\n[debug]\n'
    options, unknown = convert.options_from_toml(body, "/etc/x.toml")
    assert options == RuncOptions(binary_name="/x", root="/r", systemd_cgroup=True, io_uid=5, criu_work_path="/w")
    assert unknown == ("extra", "debug")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"BinaryName = 3", "/etc/x.toml: BinaryName: expected str, found int"),
        (b"SystemdCgroup = 'true'", "/etc/x.toml: SystemdCgroup: expected bool, found str"),
        (b"BinaryName = 'a'\nbinary_name = 'b'", "/etc/x.toml: BinaryName and binary_name are the same option"),
        (b"BinaryName = ", "/etc/x.toml: "),
        (b"\xff", "/etc/x.toml: "),
    ],
)
def test_wrong_toml_names_document_and_key(body: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        convert.options_from_toml(body, "/etc/x.toml")
    assert caught.value.message.startswith(text)
