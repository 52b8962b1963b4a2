"""Makes the generated modules of `shim/wire/proto` from the `.proto` files beside them.

Run from anywhere with the development packages installed; the output depends on nothing but those files and the
version of grpcio-tools.  `--check` writes nothing and ends with 1 when what is committed is not what would be written,
a module whose `.proto` is gone included.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "shim" / "wire" / "proto"
PATTERNS = ("*_pb2.py", "*_pb2.pyi")
BARE_MAPPING = re.compile(rb"(?<!as )_Mapping(?=[\],])")


def generate(into: Path) -> None:
    """Runs protoc over every file, with names relative to the repository so that imports are absolute."""
    sources = sorted(str(path.relative_to(ROOT)) for path in PROTO.glob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{ROOT}", f"-I{well_known}", f"--python_out={into}", f"--pyi_out={into}", *sources]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")


def read(folder: Path) -> dict[str, bytes]:
    """The generated files in a folder by name."""
    return {path.name: path.read_bytes() for pattern in PATTERNS for path in folder.glob(pattern)}


def fill_generics(stub: bytes) -> bytes:
    """protoc writes `Mapping` without its arguments, which strict mypy refuses."""
    return BARE_MAPPING.sub(b"_Mapping[str, object]", stub)


def main() -> int:
    """Writes the files, or compares them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted = {
            name: fill_generics(text) if name.endswith(".pyi") else text
            for name, text in read(Path(folder) / "shim" / "wire" / "proto").items()
        }
    present = read(PROTO)
    stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    if options.check:
        for name in stale:
            print(f"{name}: not what the .proto files give; run tools/generate_proto.py")
        return 1 if stale else 0
    for name in stale:
        if name in wanted:
            (PROTO / name).write_bytes(wanted[name])
        else:
            (PROTO / name).unlink()
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
