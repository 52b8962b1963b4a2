"""A tiny OCI image of the suite's root file system, for what only a snapshotter brings: mounts."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.harness.bundles import Json

IMAGE: Final = "example.test/box:latest"


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _document(content: Json) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _descriptor(media_type: str, data: bytes, **more: Json) -> Json:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data), **more}


def _layer(rootfs: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(rootfs, arcname=".")
    return packed.getvalue()


def write_image(rootfs: Path, archive_path: Path) -> Path:
    """An OCI layout in a tar file, ready for `ctr images import`."""
    layer = _layer(rootfs)
    config = _document(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _document(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    named: Json = {"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": "latest"}
    index = _document(
        {
            "schemaVersion": 2,
            "manifests": [
                _descriptor("application/vnd.oci.image.manifest.v1+json", manifest, annotations=named),
            ],
        }
    )
    with tarfile.open(archive_path, "w") as archive:
        _add(archive, "oci-layout", _document({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        for blob in (layer, config, manifest):
            _add(archive, "blobs/sha256/" + _digest(blob).removeprefix("sha256:"), blob)
    return archive_path


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
