"""Documents <-> attrs objects: one configured cattrs converter for each JSON or TOML format that we read or write.

Invariants: no I/O; each function takes or gives whole documents; whatever is wrong with a document comes out as one
InvalidArgument that names every faulty field, never as a foreign exception.  Values are not coerced: the text "1" is
no number and 1 is no truth, since a wrong type in these files means a wrong file.  Unknown keys are left alone, so
that a file written by a newer program can be read.
"""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from shim.errors import InvalidArgument
from shim.model.exits import DeletedRecord, ExitRecord
from shim.model.options import RuncOptions
from shim.model.settings import ManagerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_NANOSECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


# -- exit.json: keys as Go writes them (protocol.md 2.9), our own after them ------------------------------------------


def exit_record_from_json(data: bytes) -> ExitRecord:
    """The record in the bytes of an `exit.json`, ours or the Go shim's; InvalidArgument when it is none."""
    return _structure(_EXITS, _json_object(data, "exit.json"), ExitRecord, "exit.json")


def exit_record_to_json(record: ExitRecord) -> bytes:
    """The bytes of the `exit.json` for `record`."""
    return _to_json(_EXITS.unstructure(record))


def rfc3339_from_nanoseconds(at_ns: int) -> str:
    """`at_ns` (Unix time) as Go writes it: UTC, with as many decimals as needed."""
    seconds, rest = divmod(at_ns, _NANOSECOND)
    whole = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    decimals = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{whole}{decimals}Z"


def nanoseconds_from_rfc3339(text: str) -> int:
    """Unix time in nanoseconds; negative for the zero time of Go.  ValueError when `text` is no RFC 3339 time."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is no RFC 3339 time")
    day, clock, decimals, zone = match.groups()
    whole = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    elapsed = whole - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * _NANOSECOND + int((decimals or "0").ljust(9, "0"))


# -- deleted.json: the manager's own file in a bundle -----------------------------------------------------------------


def deleted_from_json(data: bytes) -> DeletedRecord:
    """The record in the bytes of a `deleted.json`; InvalidArgument when it is none."""
    return _structure(_PLAIN, _json_object(data, "deleted.json"), DeletedRecord, "deleted.json")


def deleted_to_json(record: DeletedRecord) -> bytes:
    """The bytes of the `deleted.json` for `record`."""
    return _to_json(attrs.asdict(record))


# -- a manager's configuration, in TOML -------------------------------------------------------------------------------


def settings_from_toml(data: bytes, source: str) -> ManagerSettings:
    """The settings in a TOML document; those that it does not name keep their defaults.

    InvalidArgument, after `source`, names each key that is unknown, of a wrong type or of a bad value: a person wrote
    the file, and a key that does nothing would not be noticed.
    """
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{source}: {error}") from error
    known = {field.name for field in attrs.fields(ManagerSettings)}
    if unknown := sorted(table.keys() - known):
        raise InvalidArgument(f"{source}: {', '.join(unknown)}: no such setting (known are {', '.join(sorted(known))})")
    return _structure(_PLAIN, table, ManagerSettings, source)


# -- options.json: keys as Go's struct tags write them, unset ones left out (protocol.md 2.10) ------------------------


def options_from_json(data: bytes) -> RuncOptions:
    """The options in the bytes of an `options.json`; InvalidArgument when it is none."""
    return _structure(_OPTIONS, _json_object(data, "options.json"), RuncOptions, "options.json")


def options_to_json(options: RuncOptions) -> bytes:
    """The bytes of the `options.json` for `options`: `{}` when all are defaults."""
    return _to_json(_OPTIONS.unstructure(options))


# -- options written by people, in TOML (runtimeoptions.v1) -----------------------------------------------------------


def options_from_toml(data: bytes, source: str) -> tuple[RuncOptions, tuple[str, ...]]:
    """The options in a TOML document, and the keys in it that mean nothing to us.

    Keys may be spelt as in containerd's configuration (`BinaryName`) or as on the wire (`binary_name`).  `source`
    names the document in the InvalidArgument raised when it cannot be parsed or a value has a wrong type.
    """
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{source}: {error}") from error
    known: dict[str, object] = {}
    spelt: dict[str, str] = {}
    unknown: list[str] = []
    for key, value in table.items():
        field = _OPTION_FIELDS.get(_folded(key))
        if field is None:
            unknown.append(key)
        elif field in known:
            raise InvalidArgument(f"{source}: {spelt[field]} and {key} are the same option")
        else:
            known[field] = value
            spelt[field] = key
    return _structure(_OPTIONS, known, RuncOptions, source, spelt), tuple(unknown)


def _folded(key: str) -> str:
    return key.replace("_", "").lower()


_OPTION_FIELDS: Final = {_folded(field.name): field.name for field in attrs.fields(RuncOptions)}


# -- how a converter is made and used ---------------------------------------------------------------------------------


def _strict_converter() -> Converter:
    converter = Converter(forbid_extra_keys=False, omit_if_default=True)
    for kind in (bool, int, str):
        converter.register_structure_hook(kind, _exactly(kind))
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _structure_texts)
    return converter


def _structure_texts(value: object, _: object) -> tuple[str, ...]:
    """A text is no list of texts, though it can be walked like one."""
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError("expected a list of texts")
    return tuple(value)


def _exactly(kind: type[T]) -> Callable[[object, object], T]:
    def structure(value: object, _: object) -> T:
        if type(value) is not kind:
            raise ValueError(f"expected {kind.__name__}, found {type(value).__name__}")
        return value

    return structure


def _exit_converter() -> Converter:
    converter = _strict_converter()
    at_key = "Timestamp"

    def structure_time(value: object, _: object) -> int:
        if not isinstance(value, str):
            raise ValueError(f"expected a time, found {type(value).__name__}")
        return nanoseconds_from_rfc3339(value)

    converter.register_structure_hook(
        ExitRecord,
        make_dict_structure_fn(
            ExitRecord,
            converter,
            pid=override(rename="Pid"),
            status=override(rename="Status"),
            exited_at_ns=override(rename=at_key, struct_hook=structure_time),
            namespace=override(rename="Namespace"),
            id=override(rename="ID"),
            pid_start=override(rename="PidStart"),
            oom_killed=override(rename="OOMKilled"),
        ),
    )
    converter.register_unstructure_hook(
        ExitRecord,
        make_dict_unstructure_fn(
            ExitRecord,
            converter,
            pid=override(rename="Pid"),
            status=override(rename="Status"),
            exited_at_ns=override(rename=at_key, unstruct_hook=rfc3339_from_nanoseconds),
            namespace=override(rename="Namespace"),
            id=override(rename="ID"),
            pid_start=override(rename="PidStart"),
            oom_killed=override(rename="OOMKilled"),
        ),
    )
    return converter


_EXITS: Final = _exit_converter()
_OPTIONS: Final = _strict_converter()
_PLAIN: Final = _strict_converter()


def _structure(
    converter: Converter, value: object, kind: type[T], source: str, spelt: dict[str, str] | None = None
) -> T:
    """`value` as a `kind`; InvalidArgument with every fault, each under the key as it was `spelt` in the document."""
    try:
        return converter.structure(value, kind)
    except Exception as error:  # cattrs raises groups of whatever the hooks raised
        faults = transform_error(error, path="", format_exception=_fault)
        texts = []
        for fault in faults:
            text, _, path = fault.rpartition(" @ ")
            key = path.lstrip(".")
            texts.append(f"{(spelt or {}).get(key, key)}: {text}" if key else text)
        raise InvalidArgument(f"{source}: {'; '.join(texts)}") from error


def _fault(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error)


def _json_object(data: bytes, source: str) -> dict[str, object]:
    """The object in `data` without its null members, which mean "not set" to Go."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{source}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgument(f"{source}: expected an object, found {type(value).__name__}")
    return {key: member for key, member in value.items() if member is not None}


def _to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
