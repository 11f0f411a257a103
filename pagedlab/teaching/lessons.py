"""The lessons of the course: their names, where they lie, and how a learner gets a copy of their own.

>>> lesson = COURSE[0]
>>> lesson.number, lesson.title
(0, 'One step of the engine')
>>> find_lesson("00") == find_lesson("00-one-step") == lesson.path
True

In a checkout the notebooks stand in ``notebooks/`` beside the package; an installed wheel carries them as
``pagedlab/notebooks``.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from pagedlab.errors import LessonError

_PACKAGE = Path(__file__).resolve().parents[1]

COPY_FOLDER = "pagedlab-lessons"
"""The folder, in the learner's working folder, that holds their copies of the lessons."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One lesson of the course; `path` need not exist yet."""

    number: int
    slug: str
    title: str
    about: str

    @property
    def name(self) -> str:
        """The number and the slug: ``"00-one-step"``."""
        return f"{self.number:02d}-{self.slug}"

    @property
    def path(self) -> Path:
        """Where its notebook is, or will be."""
        return lessons_directory() / f"{self.name}.ipynb"

    @property
    def exists(self) -> bool:
        """Whether its notebook has been written."""
        return self.path.is_file()


COURSE = tuple(
    Lesson(number, slug, title, about)
    for number, (slug, title, about) in enumerate(
        (
            ("one-step", "One step of the engine", "what happens each time the model runs once"),
            ("batching", "Static and continuous batching", "why a seat should never wait for its neighbours"),
            ("paged-memory", "Paged KV memory", "where keys and values live, and what blocks save"),
            ("block-table", "The block table", "how a row of numbers finds a request's memory"),
            ("slot-mapping", "Slot mapping", "the kernel that gives each token its place"),
            ("persistent-batch", "The persistent batch", "why rows move, and how few of them"),
            ("whole-step", "A whole step", "from a schedule to the tensors of one forward pass"),
            ("token-budget", "Chunked prefill and the token budget", "one number that trades first token for flow"),
            ("preemption", "Preemption and resume", "what happens when memory runs out"),
            ("prefix-caching", "Prefix caching", "how to never compute the same prompt twice"),
            ("kernel-blocks", "Kernel blocks and groups", "when layers want memory of different shapes"),
            ("cuda-graphs", "CUDA graphs and padding", "why a batch is made larger, and what that can destroy"),
            ("context-parallelism", "Context parallelism", "one request over several GPUs"),
            ("gpu-kernel", "The kernel on a GPU", "making slot mapping fast"),
        )
    )
)
"""All lessons, written or not, in order."""


def lessons_directory() -> Path:
    """Return the folder that holds the lessons' notebooks."""
    return data_directory("notebooks")


def in_checkout() -> bool:
    """Whether this is a checkout of the repository (and so not an installed wheel)."""
    return lessons_directory().parent != _PACKAGE


def data_directory(name: str) -> Path:
    """Return ``pagedlab/<name>`` of a wheel or ``<name>/`` of a checkout."""
    installed = _PACKAGE / name
    directory = installed if installed.is_dir() else _PACKAGE.parent / name
    if not directory.is_dir():
        raise LessonError(f"the folder {name!r} is missing from {_PACKAGE}: install pagedlab again")
    return directory


def find_lesson(lesson: str) -> Path:
    """Return the notebook that ``lesson`` names.

    Parameters
    ----------
    lesson : str
        A number (``"00"``, ``"0"``), a name (``"00-one-step"``), or the path of any notebook.

    Raises
    ------
    LessonError
        If there is no such lesson or file; the message lists what there is.
    """
    path = Path(lesson)
    if path.suffix == ".ipynb" and path.is_file():
        return path
    wanted = lesson.removesuffix(".ipynb")
    for candidate in COURSE:
        if wanted in (candidate.name, candidate.slug) or (wanted.isdecimal() and int(wanted) == candidate.number):
            if candidate.exists:
                return candidate.path
            raise LessonError(f"lesson {candidate.name} is not written yet; there is: {_existing()}")
    raise LessonError(f"no lesson or notebook {lesson!r}; give the path of a notebook, or one of: {_existing()}")


def _existing() -> str:
    return ", ".join(lesson.name for lesson in COURSE if lesson.exists) or "none"


def copy_lessons(folder: Path) -> list[Path]:
    """Copy into ``folder`` every lesson that it does not have yet. What is there stays as the learner left it.

    Returns
    -------
    list of Path
        The copies that were made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for source in sorted(lessons_directory().glob("*.ipynb")):
        target = folder / source.name
        if not target.exists():
            shutil.copyfile(source, target)
            copies.append(target)
    return copies


def same_cells(one: Path, other: Path) -> bool:
    """Whether two notebooks have the same text and code, whatever their cells have shown."""

    def cells(path: Path) -> list[tuple[str, str]] | None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["cells"]
            return [(cell["cell_type"], "".join(cell["source"])) for cell in found]
        except (ValueError, KeyError, TypeError):  # not a notebook: a learner may put anything there
            return None

    return cells(one) == cells(other)


def course_map() -> str:
    """Return the course as a Markdown table, with a link to every lesson that is written."""
    lines = ["| | lesson | what it is about |", "|---|---|---|"]
    for lesson in COURSE:
        title = f"[{lesson.title}]({lesson.name}.ipynb)" if lesson.exists else lesson.title
        about = lesson.about if lesson.exists else f"{lesson.about} *(to come)*"
        lines.append(f"| {lesson.number:02d} | {title} | {about} |")
    return "\n".join(lines)
