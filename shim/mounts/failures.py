"""What the kernel refuses while a root file system is put together, in the words that the caller of Create reads."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shim.errors import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def kernel_errors() -> Iterator[None]:
    """Turn an OSError into Unknown that says what was tried; our own errors pass as they are."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.filename:
            reason = f"{os.fsdecode(error.filename)}: {reason}"
        raise Unknown(f"failed to mount rootfs component: {reason}") from error
