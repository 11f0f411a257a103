"""Write a file in one go: whoever reads it finds the old one or the new one, never a part.

>>> import tempfile
>>> path = Path(tempfile.mkdtemp()) / "page.html"
>>> replace_file(path, b"first")
>>> replace_file(path, b"second")
>>> [(file.name, file.read_bytes()) for file in path.parent.iterdir()]
[('page.html', b'second')]

vLLM has no counterpart.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file, or replace the one that is there when all is on the disk.

    Parameters
    ----------
    path : Path
        Its folder must exist.
    data : bytes
    private : bool
        Whether nobody else may read it.

    Raises
    ------
    OSError
        If it cannot be written; what was there is as it was.
    """
    part = path.with_name(f".pagedlab-{secrets.token_hex(4)}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "wb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
