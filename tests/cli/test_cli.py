"""The command line, as its users meet it: a process with arguments, pipes and an exit code."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import pagedlab
from pagedlab import cli

COMMAND = [sys.executable, "-m", "pagedlab.cli"]


def pagedlab_cli(
    *arguments: str, stdin: str | bytes | None = "", **options: object
) -> subprocess.CompletedProcess[str]:
    """Run the command; its input is empty (not a terminal) unless given."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    if not options and data is not None and arguments[:1] in QUICKLY:
        return in_this_process(list(arguments), data)
    done = subprocess.run([*COMMAND, *arguments], input=data, capture_output=True, timeout=120, **options)  # type: ignore[call-overload]
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


QUICKLY = [("generate",), ("conformance",), ("bench",)]
"""Commands that this process runs itself, most of the time: a process of its own imports torch each time."""


def in_this_process(arguments: list[str], data: bytes) -> subprocess.CompletedProcess[str]:
    """Run the command here, with streams like those of a process."""
    streams = [io.TextIOWrapper(io.BytesIO(given), encoding="utf-8") for given in (data, b"", b"")]
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            code = cli.main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    written = []
    for stream in streams[1:]:
        stream.flush()
        written.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(arguments, code, *written)


def test_a_process_does_what_this_one_does() -> None:
    arguments = ["generate", "To be", "--max-tokens", "4", "--temperature", "0"]
    there = subprocess.run([*COMMAND, *arguments], input=b"", capture_output=True, timeout=120)
    here = in_this_process(arguments, b"")
    assert (here.returncode, here.stdout, here.stderr) == (0, there.stdout.decode(), there.stderr.decode())


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("pagedlab: error: ")
    for word in words:
        assert word in lines[0]


# --- the command itself -------------------------------------------------------------------------------------


def test_version() -> None:
    done = pagedlab_cli("--version")
    assert (done.returncode, done.stdout) == (0, f"pagedlab {pagedlab.__version__}\n")


def test_the_script_is_installed() -> None:
    script = Path(sys.executable).with_name("pagedlab")
    assert subprocess.run([script, "--version"], capture_output=True, check=True).stdout.startswith(b"pagedlab ")


def test_without_a_command_it_says_which_there_are() -> None:
    done = pagedlab_cli()
    assert done.returncode == 2
    assert "COMMAND" in done.stderr


def test_help_needs_no_torch_and_no_jupyter() -> None:
    code = (
        "import sys; from pagedlab.cli import main\n"
        "try: main(['generate', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'triton', 'IPython', 'plotly', 'jupyterlab', 'nbclient'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# --- generate -----------------------------------------------------------------------------------------------


def test_one_prompt_gives_its_raw_continuation() -> None:
    done = pagedlab_cli("generate", "To be, or not", "--max-tokens", "20", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert 10 <= len(done.stdout) <= 21
    assert done.stdout.endswith("\n")
    assert done.stderr == ""


def test_greedy_text_does_not_depend_on_budget_or_block_size() -> None:
    common = ("generate", "Shall I compare thee", "--max-tokens", "12", "--temperature", "0")
    texts = {
        pagedlab_cli(*common, "--budget", budget, "--block-size", size).stdout
        for budget, size in (("3", "1"), ("2048", "16"))
    }
    assert len(texts) == 1


def test_a_seed_makes_sampled_text_repeatable() -> None:
    common = ("generate", "O Romeo", "--max-tokens", "30", "--temperature", "1")
    first, second, other = (pagedlab_cli(*common, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == second
    assert first != other


def test_several_prompts_are_told_apart_line_by_line() -> None:
    done = pagedlab_cli("generate", "To be", "O Romeo", "Who's there", "--max-tokens", "100", "--seed", "0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line[:3] for line in lines if line[2:3] == ">"} == {"1 >", "2 >", "3 >"}
    assert all(re.match(r"[123] [>|]", line) for line in lines)
    assert max(map(len, lines)) <= 4 + 78 + 1


def test_prompts_come_from_a_file_and_from_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("To be\r\n\n  \nO Romeo", encoding="utf-8")
    common = ("--max-tokens", "8", "--temperature", "0")
    from_file = pagedlab_cli("generate", "--file", str(file), *common)
    from_pipe = pagedlab_cli("generate", *common, stdin="To be\nO Romeo\n")
    from_dash = pagedlab_cli("generate", "--file", "-", *common, stdin="To be\nO Romeo\n")
    assert from_file.stdout == from_pipe.stdout == from_dash.stdout
    assert "1 > To be\n" in from_file.stdout
    assert "2 > O Romeo\n" in from_file.stdout


def test_a_terminal_that_lacks_a_character_shows_a_question_mark() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    arguments = ("generate", "\N{SNOWMAN} To be", "O Romeo", "--max-tokens", "4", "--temperature", "0")
    done = pagedlab_cli(*arguments, env=environment)
    assert done.returncode == 0, done.stderr
    assert "1 > ? To be\n" in done.stdout.replace("\r\n", "\n")


def test_stats_go_to_standard_error() -> None:
    done = pagedlab_cli("generate", "To be", "--max-tokens", "5", "--temperature", "0", "--stats")
    assert re.fullmatch(r"\d+ tokens in \d+\.\d\d s \(\d+ tokens/s\), \d+ steps\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate",), ("no prompt",)),
        (("generate", ""), ("prompt 1", "empty")),
        (("generate", "ok", ""), ("prompt 2", "empty")),
        (("generate", "x" * 100_000), ("prompt 1", "max_model_len")),
        (("generate", "hi", "--budget", "0"), ("max_num_batched_tokens",)),
        (("generate", "hi", "--budget", "2", "--max-num-seqs", "4"), ("max_num_seqs",)),
        (("generate", "hi", "--block-size", "0"), ("block_size",)),
        (("generate", "hi", "--temperature", "-1"), ("temperature",)),
        (("generate", "hi", "--temperature", "nan"), ("temperature",)),
        (("generate", "hi", "--device", "quantum"), ("quantum",)),
        (("generate", "--file", "/no/such/file"), ("/no/such/file",)),
        (("run", "99"), ("99", "00-one-step")),
        (("lab", "nonsense"), ("nonsense", "00-one-step")),
    ],
)
def test_wrong_input_is_one_clear_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_clear_line(pagedlab_cli(*arguments), *words)


def test_input_that_is_not_text_is_one_clear_line() -> None:
    assert_one_clear_line(pagedlab_cli("generate", stdin=b"\xff\xfe\xfa"), "standard input", "UTF-8")


@pytest.mark.parametrize("option", [("--max-tokens", "0"), ("--max-tokens", "many"), ("--temperature", "hot")])
def test_wrong_options_say_what_is_allowed(option: tuple[str, str]) -> None:
    done = pagedlab_cli("generate", "hi", *option)
    assert done.returncode == 2
    assert option[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_it_at_once_without_a_traceback() -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", "To be", "--max-tokens", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background job ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.read(3)  # it streams: text is here long before the end
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"interrupted" in errors


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [*COMMAND, "generate", "To be", "--max-tokens", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background job ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(3)
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_on_a_terminal_the_prompt_stands_before_the_text_and_nothing_can_command_the_terminal() -> None:
    import pty  # there is none on Windows

    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "generate", "To\x1b]0;owned\x07 be", "--max-tokens", "4", "--temperature", "0"],
        stdin=child, stdout=child, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(child)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            chunk = os.read(parent, 4096)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(parent)
    assert process.wait(timeout=20) == 0
    assert "\x1b[2mTo�]0;owned� be\x1b[0m".encode() in shown
    assert b"\x1b]" not in shown


# --- lab ----------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What `pagedlab lab` would start instead of itself."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: commands.append(command))
    monkeypatch.setattr(subprocess, "call", lambda command: 0)
    monkeypatch.delenv("JUPYTER_CONFIG_PATH", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return commands


@pytest.mark.parametrize("checkout", [True, False])
def test_lab_opens_a_copy_that_it_never_overwrites(
    checkout: bool,
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pagedlab.teaching import find_lesson

    shipped = find_lesson("00").read_bytes()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pagedlab.teaching.lessons.in_checkout", lambda: checkout)
    cli.main(["lab", "00", "--port", "9999"])
    copy = tmp_path / "pagedlab-lessons" / "00-one-step.ipynb"
    assert "(a fresh copy)" in capsys.readouterr().out
    assert copy.read_bytes() == shipped

    notebook = json.loads(shipped)
    code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "it ran"}]
    copy.write_text(json.dumps(notebook))
    cli.main(["lab", str(find_lesson("00")), "--port", "9999"])
    assert "(your own copy, as you left it)" in capsys.readouterr().out

    copy.write_text("my work")
    cli.main(["lab", "00", "--port", "9999"])
    assert "it differs from the lesson: rename it to get a fresh one" in capsys.readouterr().out
    assert copy.read_text() == "my work"
    assert find_lesson("00").read_bytes() == shipped
    for command in started:
        assert f"--ServerApp.root_dir={copy.parent}" in command
        assert "--LabApp.default_url=/lab/tree/00-one-step.ipynb" in command
        assert "--ServerApp.port=9999" in command
        if sys.platform == "linux":
            assert "--no-browser" in command  # there is no screen to open one on


def test_lab_opens_any_other_notebook_where_it_is(started: list[list[str]], tmp_path: Path) -> None:
    path = tmp_path / "mine.ipynb"
    path.touch()
    cli.main(["lab", str(path)])
    assert f"--ServerApp.root_dir={tmp_path}" in started[-1]
    assert list(tmp_path.iterdir()) == [path]


def test_git_ignores_the_copies_in_a_checkout() -> None:
    from pagedlab.teaching.lessons import COPY_FOLDER

    ignored = (Path(__file__).parents[2] / ".gitignore").read_text(encoding="utf-8").split()
    assert f"/{COPY_FOLDER}/" in ignored


# --- run ----------------------------------------------------------------------------------------------------


def test_run_marks_the_line_that_failed(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**cell, "source": "x = 1"}, {**cell, "id": "b", "source": "y = x\nz = y / 0"}]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    done = pagedlab_cli("run", str(path), "--output", str(tmp_path / "out.ipynb"))
    assert done.returncode == 1
    assert "[1/2] x = 1" in done.stdout
    assert "code cell 2 of 2 failed" in done.stdout
    assert "-->   2 | z = y / 0" in done.stdout
    assert "ZeroDivisionError: division by zero" in done.stdout
    assert (tmp_path / "out.ipynb").exists()


# --- doctor -------------------------------------------------------------------------------------------------


def test_doctor_says_in_json_what_it_says_in_words() -> None:
    done = pagedlab_cli("doctor", "--json")
    assert done.returncode == 0, done.stdout
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    names = {"Python", "pagedlab", "torch", "kernels", "GPU", "Jupyter", "browser", "lessons", "model"}
    assert names <= checks.keys()
    assert checks["kernels"]["found"].split(":")[0] in ("cuda", "interpreter", "numpy")
    assert all(check["advice"] for check in checks.values() if check["status"] != "ok")
    words = pagedlab_cli("doctor").stdout
    assert all(name in words for name in names)
    assert "This machine can run the course." in words


def test_doctor_fails_when_something_must_be_mended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pagedlab import doctor

    def broken() -> doctor.Check:
        raise RuntimeError("no weights")

    broken.__name__ = "check_model"
    monkeypatch.setattr(doctor, "check_model", broken)
    assert cli.main(["doctor"]) == 1
    assert "RuntimeError: no weights" in capsys.readouterr().out


@pytest.mark.parametrize("check", ["check_python", "check_package", "check_gpu", "check_jupyter"])
def test_doctor_reports_any_check_that_breaks_and_makes_the_others(
    check: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pagedlab import doctor

    def broken() -> doctor.Check:
        raise PackageNotFoundError("lost")

    broken.__name__ = check
    monkeypatch.setattr(doctor, check, broken)
    assert cli.main(["doctor", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [found["name"] for found in checks if found["status"] == "problem"] == [check.removeprefix("check_")]
    assert len(checks) == 9


def test_version_and_doctor_work_where_pagedlab_is_on_the_path_but_not_installed() -> None:
    hide = (
        "import importlib.metadata as metadata, sys\n"
        "def version(name, real=metadata.version):\n"
        "    if name == 'pagedlab': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
        "from pagedlab.cli import main\n"
        "sys.exit(main())\n"
    )
    said = {}
    for argument in ("--version", "doctor"):
        done = subprocess.run([sys.executable, "-c", hide, argument], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        said[argument] = done.stdout
    assert said["--version"] == "pagedlab 0+unknown\n"
    assert "pip install -e ." in said["doctor"]


@pytest.mark.parametrize("tier", ["interpreter", "numpy"])
def test_doctor_says_that_the_engine_uses_numpy_on_a_cpu(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pagedlab import doctor, kernels

    monkeypatch.setattr(kernels, "backend", lambda: kernels.Backend(tier, "a test"))
    assert "the engine maps slots with NumPy" in doctor.check_kernels().advice


# --- conformance and bench ------------------------------------------------------------------------------------

GOLDEN = Path(__file__).parents[1] / "golden"


def test_conformance_says_what_was_compared_and_what_was_not(tmp_path: Path) -> None:
    files = [str(GOLDEN / f"{name}.jsonl.gz") for name in ("slot_mapping", "input_batch")]
    done = pagedlab_cli("conformance", *files)
    assert (done.returncode, done.stdout) == (0, "320 cases, 1340 steps: all equal\n"), done.stderr
    unknown = tmp_path / "unknown.jsonl"
    unknown.write_text('{"kind": "attention", "name": "a"}\n', encoding="utf-8")
    done = pagedlab_cli("conformance", *files, str(unknown))
    assert done.returncode == 1
    assert done.stdout == "320 cases, 1340 steps: all equal\n1 cases of kind attention: not compared\n"


def test_conformance_stops_at_the_first_difference(tmp_path: Path) -> None:
    with gzip.open(GOLDEN / "engine.jsonl.gz", "rt", encoding="utf-8") as lines:
        case = json.loads(next(lines))
    case["steps"][2]["free_blocks"].reverse()
    file = tmp_path / "changed.jsonl"
    file.write_text(json.dumps(case), encoding="utf-8")
    done = pagedlab_cli("conformance", str(file))
    assert done.returncode == 1
    assert done.stdout.startswith(f"case {case['name']}, step 2, free_blocks:\n  ours ")


def test_conformance_of_what_is_no_trace_is_wrong_input(tmp_path: Path) -> None:
    assert_one_clear_line(pagedlab_cli("conformance", __file__), "line 1 is not JSON")
    assert_one_clear_line(pagedlab_cli("conformance", str(tmp_path / "none.jsonl")), "cannot be read")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    done = pagedlab_cli("conformance", str(empty))
    assert (done.returncode, done.stdout) == (1, "nothing was compared\n")


@pytest.mark.thorough
def test_bench_host_prints_json_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "host.md"
    done = pagedlab_cli("bench", "host", "--json", "--seconds", "0.01", "--page", str(page))
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert set(data) == {"machine", "date", "seconds", "repeats", "vllm_measured", "rows"}
    assert (data["seconds"], data["repeats"]) == (0.01, 3)
    assert "the best of 3 runs of 0.01 s each" in page.read_text(encoding="utf-8")
    assert data["vllm_measured"] in page.read_text(encoding="utf-8")
    names = [row["name"] for row in data["rows"]]
    assert "schedule_256" in names
    assert {"host_step_256", "batch_churn_8_of_256", "batch_swap", "commit_bytes"} <= set(names)
    assert next(row for row in data["rows"] if row["name"] == "host_step_256")["steps_per_s"] > 0
    rates = [rate for row in data["rows"] for key, rate in row.items() if key.endswith("_per_s")]
    assert all(rate > 0 for rate in rates)
    assert json.loads(page.with_suffix(".json").read_text(encoding="utf-8")) == data
    assert all(f"`{name}`" in page.read_text(encoding="utf-8") for name in names)
    assert_one_clear_line(pagedlab_cli("bench", "host", "--seconds", "0"), "above 0")


def test_bench_host_says_before_it_measures_that_a_page_has_no_folder(tmp_path: Path) -> None:
    page = tmp_path / "none" / "host.md"
    done = pagedlab_cli("bench", "host", "--seconds", "100", "--page", str(page))
    assert_one_clear_line(done, str(page), "does not exist")
    assert done.stdout == ""


def test_a_figure_of_vllm_is_told_as_one_of_another_machine() -> None:
    from pagedlab.bench import VLLM_MEASURED, Row

    assert str(Row("a", "w", 958.0, "steps/s", 479.0)).endswith("2.0 x vLLM 0.25.1 on its machine")
    assert "another machine" in VLLM_MEASURED
    assert "2026-11-29" in VLLM_MEASURED


def test_generate_says_when_the_model_can_read_no_more() -> None:
    prompt = "To be, or not to be. " * 97  # 2,037 tokens: eleven are left
    done = pagedlab_cli("generate", prompt, "--max-tokens", "5000", "--temperature", "0")
    assert done.returncode == 0
    assert "cut at 2048 tokens" in done.stderr
    assert "cut at" not in pagedlab_cli("generate", "To be", "--max-tokens", "5", "--temperature", "0").stderr
