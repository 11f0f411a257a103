"""Write a whole folder, or none.

vLLM has no counterpart.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pagedlab.errors import ExerciseError


@contextlib.contextmanager
def new_folder(directory: Path) -> Iterator[Path]:
    """Give a folder to write in, which becomes ``directory`` when all is well; else nothing is left of it.

    Parameters
    ----------
    directory : Path
        Empty, or not there.

    Raises
    ------
    ExerciseError
        If there is something in it, or it cannot be written.
    """
    try:
        directory = directory.resolve()
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ExerciseError(f"{directory} exists and is not empty: it stays as it is; give another folder")
        directory.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}-"))
    except OSError as error:
        raise ExerciseError(f"{directory} cannot be written: {error.strerror or error}") from None
    try:
        part.chmod(0o755)
        yield part
        if directory.exists():  # it may be where somebody works, a link or a mounted disk: it stays
            for path in sorted(part.iterdir()):
                shutil.move(path, directory / path.name)
        else:
            part.rename(directory)
    finally:
        shutil.rmtree(part, ignore_errors=True)
