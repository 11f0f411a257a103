"""The command `pagedlab`: open a lesson, run one headless, look at this machine, or let the engine write.

    pagedlab lab 00                       # JupyterLab on the first lesson
    pagedlab run 00                       # execute it without a browser
    pagedlab pages --to pages             # all lessons as pages that need no kernel
    pagedlab check condense my.py         # is this exercise right? (`pagedlab exercises` lists them)
    pagedlab grade submissions --out grades.csv   # a whole class; see also release and export-nbgrader
    pagedlab doctor                       # what this machine can do
    pagedlab generate "To be, or" "O Romeo"   # two requests, batched, streamed
    pagedlab conformance golden.jsonl.gz  # replay what vLLM did, compare every field
    pagedlab bench host                   # how fast the work between two forward passes is
    pagedlab bench kernels                # how fast the kernels are, on a GPU

Everything that is slow to import is imported by the command that needs it. Exit codes: 0 done, 1 a lesson or a check
failed, 2 wrong input, 130 interrupted.

vLLM counterpart: ``vllm/entrypoints/cli/`` (``vllm serve``, ``vllm complete``). What differs: no server; the engine
runs in this process.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pagedlab.arguments import whole
from pagedlab.errors import ConfigError, LessonError, PagedlabError, RequestError
from pagedlab.exercise_commands import add_exercise_commands
from pagedlab.teacher_commands import add_teacher_commands

if TYPE_CHECKING:
    from pagedlab import LLMEngine, RequestOutput
    from pagedlab.doctor import Check
    from pagedlab.teaching.execution import CellRun, CodeCell

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character that the model writes
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except (PagedlabError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read us has left. Let nothing complain when Python flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_BROKEN_PIPE
        print(f"pagedlab: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("\npagedlab: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="pagedlab", description="How vLLM keeps a GPU busy: a course that runs.")
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    lab = commands.add_parser("lab", help="open a lesson in JupyterLab")
    lab.add_argument("lesson", nargs="?", default="00", help="number, name or path (default: 00)")
    lab.add_argument("--port", type=whole(1, 65535), default=8888, help="the next free one if taken (default: 8888)")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    lab.set_defaults(command=run_lab)

    run = commands.add_parser("run", help="execute a lesson without a browser")
    run.add_argument("lesson", help="number, name or path of a notebook")
    run.add_argument("--timeout", type=whole(1), default=120, metavar="SECONDS", help="for one cell (default: 120)")
    run.add_argument("--output", type=Path, metavar="FILE", help="save the executed notebook here")
    run.set_defaults(command=run_run)

    pages = commands.add_parser(
        "pages",
        help="write lessons as pages that need no kernel and no network",
        description="Execute lessons and write a page of each, whose scenes play in any browser, and an index.html.",
    )
    pages.add_argument("lessons", nargs="*", metavar="LESSON", help="number or name (default: all)")
    pages.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder; is made if it does not exist")
    pages.add_argument("--timeout", type=whole(1), default=120, metavar="SECONDS", help="for one cell (default: 120)")
    pages.set_defaults(command=run_pages)

    doctor = commands.add_parser("doctor", help="say what this machine can do, and how to get further")
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.set_defaults(command=run_doctor)

    add_exercise_commands(commands)
    add_teacher_commands(commands)

    generate = commands.add_parser(
        "generate",
        help="let the engine continue one or several prompts",
        description="Continue prompts, all in one batch, and stream the text as the engine makes it. "
        "Prompts come from the command line, from --file, or from a pipe (one a line).",
    )
    generate.add_argument("prompts", nargs="*", metavar="PROMPT")
    generate.add_argument("--file", metavar="FILE", help="prompts, one a line; - is standard input")
    generate.add_argument("--max-tokens", type=whole(1), default=120, metavar="N", help="per prompt (default: 120)")
    generate.add_argument("--temperature", type=float, default=0.7, metavar="T", help="0 is greedy (default: 0.7)")
    for name, value, meaning in (
        ("top-p", 1.0, "sample from the likeliest tokens that together reach this probability"),
        ("min-p", 0.0, "sample from tokens at least this fraction as likely as the likeliest"),
        ("repetition-penalty", 1.0, "above 1: what was in prompt or text becomes less likely"),
        ("frequency-penalty", 0.0, "above 0: a token becomes less likely each time it is written"),
        ("presence-penalty", 0.0, "above 0: a token becomes less likely once it is written"),
    ):
        generate.add_argument(
            f"--{name}", type=float, default=value, metavar="X", help=f"{meaning} (default: {value:g})"
        )
    generate.add_argument("--top-k", type=int, default=0, metavar="N", help="sample from the N likeliest; 0: from all")
    generate.add_argument("--seed", type=int, metavar="N", help="makes the text repeatable")
    generate.add_argument("--budget", type=int, default=2048, metavar="N", help="max_num_batched_tokens: tokens a step")
    generate.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens in a KV block (default: 16)")
    generate.add_argument("--max-num-seqs", type=int, metavar="N", help="seats (default: 128, or the budget if less)")
    generate.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    generate.add_argument("--stats", action="store_true", help="tokens a second and steps, on standard error")
    generate.set_defaults(command=run_generate)

    conformance = commands.add_parser(
        "conformance",
        help="replay what vLLM 0.25.1 did and compare every field",
        description="Replay golden traces (.jsonl or .jsonl.gz, format in tests/golden/FORMAT.md) and compare every "
        "field with ours. Exit code 0 if all are equal, 1 at the first difference or if nothing was compared.",
    )
    conformance.add_argument("files", nargs="+", type=Path, metavar="FILE")
    conformance.set_defaults(command=run_conformance)

    bench = commands.add_parser("bench", help="measure pagedlab on this machine")
    what = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    host = what.add_parser("host", help="scheduler and KV cache manager, without the model")
    host.add_argument("--json", action="store_true", help="for programs")
    host.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="length of each of three runs (default: 1)"
    )
    host.add_argument(
        "--page", type=Path, metavar="FILE", help="write the figures here as Markdown, and beside it as JSON"
    )
    host.set_defaults(command=run_bench_host)
    kernels = what.add_parser(
        "kernels",
        help="every kernel and the whole engine, on a CUDA GPU",
        description="Measure every kernel beside its floors and vLLM's, and the whole engine with the shipped model. "
        "Needs a CUDA GPU.",
    )
    kernels.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    kernels.set_defaults(command=run_bench_kernels)
    return parser


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from pagedlab import __version__

        print(f"pagedlab {__version__}")
        parser.exit()


# --- lab ----------------------------------------------------------------------------------------------------


def run_lab(arguments: argparse.Namespace) -> int:
    """Open JupyterLab on the learner's own copy of a lesson, or on another notebook itself."""
    from importlib.util import find_spec
    from urllib.parse import quote

    from pagedlab.teaching.lessons import COPY_FOLDER, copy_lessons, find_lesson, lessons_directory, same_cells

    path = find_lesson(arguments.lesson).resolve()
    if find_spec("jupyterlab") is None:
        raise LessonError(
            'JupyterLab is not installed: pip install "pagedlab[lab]". Without it, `pagedlab run` still runs a lesson'
        )
    if path.parent == lessons_directory():
        folder = Path.cwd() / COPY_FOLDER
        copies = copy_lessons(folder)
        shipped, path = path, folder / path.name
        if path in copies:
            kept = "a fresh copy"
        elif same_cells(path, shipped):
            kept = "your own copy, as you left it"
        else:
            kept = "your own copy, as you left it; it differs from the lesson: rename it to get a fresh one"
        print(f"Opening {path.relative_to(Path.cwd())} ({kept}).", flush=True)

    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={path.parent}"]
    # As the default address, not as an argument, so that the address that is printed leads to the lesson too.
    command += [f"--LabApp.default_url=/lab/tree/{quote(path.name)}", f"--ServerApp.port={arguments.port}"]
    # A lesson is no place for news from the network, nor for a teacher's tools: our folder turns both off.
    settings = [str(Path(__file__).parent / "teaching" / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, settings))
    command += ["--ServerApp.log_level=WARN"]  # the address is still shown
    if arguments.no_browser or not _has_screen():
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    if os.name == "posix":  # on Windows, exec would give the terminal back while the server goes on
        os.execv(sys.executable, command)
    return subprocess.call(command)


def _has_screen() -> bool:
    """Whether a browser could open a window here."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


# --- run ----------------------------------------------------------------------------------------------------


def run_run(arguments: argparse.Namespace) -> int:
    """Execute a lesson and report on every cell."""
    from pagedlab.teaching.execution import jupyter_is_installed, run_lesson
    from pagedlab.teaching.lessons import find_lesson

    path = find_lesson(arguments.lesson)
    live = sys.stdout.isatty()
    if jupyter_is_installed():
        print(f"{path.name}, in a Jupyter kernel")
    else:
        print(f"{path.name}, in plain Python (Jupyter is not installed: what the cells show is not seen)")

    def started(cell: CodeCell, num_cells: int) -> None:
        if live:
            print(f"{_progress(cell, num_cells)} ...", end="", flush=True)

    def ended(run: CellRun) -> None:
        result = f"{run.seconds:6.2f} s" if run.failure is None else "FAILED"
        print(f"{chr(13) if live else ''}{_progress(run.cell, run.num_cells)} {result}", flush=True)

    report = run_lesson(path, timeout=arguments.timeout, progress=ended, started=started, output=arguments.output)
    if arguments.output is not None:
        print(f"Saved {arguments.output}")
    if report.failed is not None:
        print(_failure_report(report.failed, path))
        return EXIT_FAILED
    print(f"{len(report.runs)} cells ran in {report.seconds:.1f} s, none failed.")
    return 0


def _progress(cell: CodeCell, num_cells: int) -> str:
    title = textwrap.shorten(cell.title, 60, placeholder=" ...")
    return f"[{cell.number:>{len(str(num_cells))}}/{num_cells}] {title:<60}"


def _failure_report(run: CellRun, path: Path) -> str:
    """Describe a failed cell: where it is, its source with the failing line marked, the end of its error."""
    cell, failure = run.cell, run.failure
    assert failure is not None
    section = f', under "{cell.section}"' if cell.section else ""
    lines = ["", f"{path.name}: code cell {cell.number} of {run.num_cells} failed{section}", ""]
    for number, line in enumerate(cell.source.splitlines(), start=1):
        lines.append(f"{'-->' if number == failure.line else '   '} {number:3} | {line}")
    lines += ["", *(f"    {line}" for line in failure.error)]
    return "\n".join(lines)


# --- pages --------------------------------------------------------------------------------------------------


def run_pages(arguments: argparse.Namespace) -> int:
    """Execute lessons and write their pages; report on the cell that fails, if one does."""
    from pagedlab.teaching.pages import LessonFailedError, Page, lessons_called, write_pages

    def made(page: Page, seconds: float) -> None:
        print(f"{page.name:<28} ran in {seconds:5.1f} s, {len(page.text.encode()) / 1e6:.1f} MB", flush=True)

    try:
        written = write_pages(arguments.to, lessons_called(arguments.lessons), timeout=arguments.timeout, told=made)
    except LessonFailedError as error:
        print(f"{_failure_report(error.run, error.lesson.path)}\n\n{error}")
        return EXIT_FAILED
    print(f"Wrote {len(written)} files. Open {arguments.to / 'index.html'} in a browser.")
    return 0


# --- doctor -------------------------------------------------------------------------------------------------


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print every check as soon as it is made; fail if one found a problem."""
    from pagedlab.doctor import diagnose

    checks: list[Check] = []
    for check in diagnose():
        checks.append(check)
        if not arguments.json:
            mark = {"ok": "ok", "info": "--", "problem": "!!"}[check.status]
            indent = " " * 14
            print(textwrap.fill(f"{mark} {check.name:<10} {check.found}", 100, subsequent_indent=indent), flush=True)
            if check.advice:
                print(textwrap.fill(check.advice, 100, initial_indent=indent, subsequent_indent=indent), flush=True)
    if arguments.json:
        print(json.dumps({"checks": [check.as_dict() for check in checks]}, indent=2))
    problems = [check for check in checks if check.status == "problem"]
    if not arguments.json:
        print(f"\n{len(problems)} problem(s): see !! above." if problems else "\nThis machine can run the course.")
    return EXIT_FAILED if problems else 0


# --- generate -----------------------------------------------------------------------------------------------


def run_generate(arguments: argparse.Namespace) -> int:
    """Continue the prompts in one batch and stream what comes."""
    prompts = list(_prompts(arguments))
    if not prompts:
        raise RequestError('no prompt: give one ("To be, or"), a file (--file), or pipe lines in')

    from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig
    from pagedlab.printing import ManyTexts, OneText

    seats = arguments.max_num_seqs
    engine = LLMEngine(
        "quill",
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=arguments.budget,
            max_num_seqs=max(1, min(128, arguments.budget)) if seats is None else seats,
        ),
        cache_config=CacheConfig(block_size=arguments.block_size),
        device=arguments.device,
    )
    ids = [f"{number:0{len(str(len(prompts)))}d}" for number in range(1, len(prompts) + 1)]
    for index, (request_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
        # Requests with one seed would all make the same choices: each gets the next.
        seed = None if arguments.seed is None else arguments.seed + index
        params = SamplingParams(
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            min_p=arguments.min_p,
            repetition_penalty=arguments.repetition_penalty,
            frequency_penalty=arguments.frequency_penalty,
            presence_penalty=arguments.presence_penalty,
            seed=seed,
        )
        try:
            engine.add_request(request_id, prompt, params)
        except RequestError as error:
            raise RequestError(f"prompt {index + 1}: {error}") from None

    stats = _Stats()
    printer: OneText | ManyTexts
    if len(prompts) == 1:
        printer = OneText(prompts[0], sys.stdout)
    else:
        printer = ManyTexts(dict(zip(ids, prompts, strict=True)), sys.stdout)
    try:
        for output in _stream(engine, stats):
            printer.write(output.request_id, output.new_text, output.finished)
        if stats.num_cut:
            longest = engine.config.max_model_len
            who = "The text was" if len(prompts) == 1 else f"{stats.num_cut} texts were"
            print(f"{who} cut at {longest} tokens, prompt included: the model reads no more.", file=sys.stderr)
    finally:
        if arguments.stats:
            print(stats, file=sys.stderr)
    return 0


def _prompts(arguments: argparse.Namespace) -> Iterator[str]:
    yield from arguments.prompts
    source = arguments.file
    if source is None and not arguments.prompts and not sys.stdin.isatty():
        source = "-"
    if source is None:
        return
    try:
        text = sys.stdin.buffer.read().decode() if source == "-" else Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RequestError(f"{'standard input' if source == '-' else source} is not UTF-8 text") from None
    for line in text.split("\n"):
        if line.strip():
            yield line.removesuffix("\r")


class _Stats:
    """What `--stats` tells."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.num_steps = self.num_tokens = self.num_cut = 0

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.begin
        rate = self.num_tokens / seconds if seconds else 0.0
        return f"{self.num_tokens} tokens in {seconds:.2f} s ({rate:.0f} tokens/s), {self.num_steps} steps"


def _stream(engine: LLMEngine, stats: _Stats) -> Iterator[RequestOutput]:
    longest = engine.config.max_model_len
    while engine.has_unfinished_requests():
        stats.num_steps += 1
        for output in engine.step():
            stats.num_tokens += len(output.new_token_ids)
            num_tokens = len(output.prompt_token_ids) + len(output.output_token_ids)
            stats.num_cut += output.finish_reason == "length" and num_tokens == longest
            yield output


def run_conformance(arguments: argparse.Namespace) -> int:
    """Compare golden traces with ours."""
    from pagedlab.conformance import compare, read_cases

    report = compare(case for file in arguments.files for case in read_cases(file))
    print(report)
    return 0 if report.passed else EXIT_FAILED


def run_bench_kernels(arguments: argparse.Namespace) -> int:
    """Measure the kernels and print the figures as they come."""
    from pagedlab.kernels import backend

    if backend().name != "cuda":
        raise ConfigError(f"bench kernels needs a CUDA GPU; here: {backend().reason}. 'bench host' runs anywhere")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise ConfigError(f"--json: the folder of {arguments.json} does not exist: make it first")
    from pagedlab.bench.kernels import kernel_report, kernel_rows
    from pagedlab.bench.whole_engine import engine_figures

    rows = []
    for row in kernel_rows():
        rows.append(row)
        print(row, flush=True)
    engine = engine_figures()
    print(json.dumps(engine, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(kernel_report(rows, engine), indent=1) + "\n", encoding="utf-8")
    return 0


def run_bench_host(arguments: argparse.Namespace) -> int:
    """Measure the host side and print the figures as they come."""
    from pagedlab.bench import VLLM_MEASURED, host_rows, report, to_markdown

    if not 0 < arguments.seconds < 3600:
        raise ConfigError(f"--seconds is {arguments.seconds:g}: give a number above 0, and below an hour")
    if arguments.page is not None and not arguments.page.parent.is_dir():
        raise ConfigError(f"--page: the folder of {arguments.page} does not exist: make it first")
    if not arguments.json:
        print(f"Beside our figures: {VLLM_MEASURED}.", flush=True)
    rows = []
    for row in host_rows(arguments.seconds):
        rows.append(row)
        if not arguments.json:
            print(row, flush=True)
    data = report(rows, arguments.seconds)
    if arguments.json:
        print(json.dumps(data, indent=1))
    if arguments.page is not None:
        arguments.page.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        arguments.page.write_text(to_markdown(data), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
