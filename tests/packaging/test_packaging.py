"""What `pip install` gives: everything a learner needs, quickly imported, without the extras."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXTRAS = ("IPython", "anywidget", "ipykernel", "ipywidgets", "jupyterlab", "nbclient", "nbformat", "plotly", "scipy")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: what an earlier build left in build/ must not get in
    for name in ("pagedlab", "kernels", "notebooks", "exercises"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_every_source_file_and_all_data(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    code = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "pagedlab").rglob("*.py")}
    code |= {f"pagedlab/kernels/{path.name}" for path in (REPOSITORY / "kernels").glob("*.py")}
    data = {f"pagedlab/notebooks/{path.name}" for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    for pattern in (
        "pagedlab/model/weights/*/*",
        "pagedlab/widgets/*.js",
        "pagedlab/widgets/*.css",
        "pagedlab/**/*.json",
    ):
        data |= {path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob(pattern)}
    assert code - held == set()
    assert data - held == set()
    for needed in ("weights/quill/model.safetensors", "notebooks/00-one-step.ipynb", "widgets/player.js", "py.typed"):
        assert any(name.endswith(needed) for name in held), needed
    assert not {name for name in held if "__pycache__" in name or name.startswith(("tests", "build"))}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it depends on, but none of the extras."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    # torch is large: it is borrowed from this environment, module by module, so that the extras stay out.
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    ours = Path(sysconfig.get_path("purelib"))
    blocked = {name.lower() for name in EXTRAS}
    for entry in ours.iterdir():
        top = entry.name.split(".")[0].split("-")[0].lower()
        if top not in blocked and "pagedlab" not in entry.name and entry.suffix != ".pth":
            (borrowed / entry.name).symlink_to(entry)
    site = folder / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return python


def run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], capture_output=True, text=True, cwd=cwd, timeout=170)


@pytest.mark.slow
def test_the_installed_wheel_runs_the_first_lesson_without_jupyter(installed: Path, tmp_path: Path) -> None:
    where = run(installed, "-c", "import pagedlab, pagedlab.kernels; print(pagedlab.kernels.__file__)", cwd=tmp_path)
    assert REPOSITORY.as_posix() not in where.stdout
    done = run(installed, "-m", "pagedlab.cli", "run", "00", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in plain Python (Jupyter is not installed" in done.stdout
    assert "none failed" in done.stdout
    assert list(tmp_path.iterdir()) == []  # and it leaves nothing behind


@pytest.mark.slow
def test_the_installed_wheel_says_how_to_get_jupyter(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "-m", "pagedlab.cli", "lab", cwd=tmp_path)
    assert done.returncode == 2
    assert 'pip install "pagedlab[lab]"' in done.stderr
    doctor = run(installed, "-m", "pagedlab.cli", "doctor", cwd=tmp_path)
    assert doctor.returncode == 0, doctor.stdout
    assert 'pip install "pagedlab[lab]"' in doctor.stdout


def test_every_package_that_we_name_has_an_exact_version_in_the_constraints() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [entry for extra in project["optional-dependencies"].values() for entry in extra]
    named = {re.match(r"[\w-]+", entry).group().lower().replace("_", "-") for entry in wanted} - {"pagedlab"}  # type: ignore[union-attr]
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert named - pinned == set()


def test_importing_pagedlab_is_quick() -> None:
    def seconds() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import pagedlab"], check=True)
        return time.perf_counter() - begin

    empty = min(_timed("pass") for _ in range(3))
    assert min(seconds() for _ in range(3)) - empty < 0.3


def _timed(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begin


@pytest.mark.parametrize(
    "code",
    [
        "import pagedlab, pagedlab.trace, pagedlab.scenes",
        "from pagedlab import LLMEngine, record",
        "import pagedlab.kernels, pagedlab.widgets, pagedlab.teaching, pagedlab.cli, pagedlab.doctor",
    ],
)
def test_the_core_imports_where_no_extra_is_installed(code: str) -> None:
    block = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {EXTRAS!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    done = subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["pagedlab", "pagedlab.scheduling", "pagedlab.kvcache", "pagedlab.trace"])
def test_light_parts_load_neither_torch_nor_numpy(package: str) -> None:
    code = f"import sys, {package}; assert not {{'torch', 'numpy', 'triton'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
