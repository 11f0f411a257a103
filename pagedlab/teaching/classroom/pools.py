"""Where submissions are graded: in processes of this machine, or on an IPython cluster.

Both take jobs and yield marks as they come. A judge that dies takes nothing with it: what it was at is tried once more,
alone, and then marked as not graded.

vLLM has no counterpart.
"""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pagedlab.errors import ExerciseError
from pagedlab.teaching.classroom.grading import WHOLE, Job, Mark, grade_one, prepare_process, unmarked, usable_cores

CLUSTER_SECONDS = 10
"""How long to wait for a cluster to answer."""

Grader = Callable[[Job], Mark]


def on_this_machine(jobs: Iterable[Job], num_processes: int, grader: Grader = grade_one) -> Iterator[Mark]:
    """Grade in processes of this machine, each on a core of its own.

    Parameters
    ----------
    jobs : iterable of Job
    num_processes : int
        More than there are cores make submissions late, and some may not be done in time.
    grader : callable

    Yields
    ------
    Mark
        As they come.
    """
    waiting = deque(jobs)
    while waiting:
        lost = yield from _until_a_process_dies(waiting, num_processes, grader)
        for job in lost:
            if (yield from _until_a_process_dies(deque([job]), 1, grader)):
                yield _not_graded(job, "the process that graded it ended, twice: too little memory?")


def _until_a_process_dies(waiting: deque[Job], num_processes: int, grader: Grader) -> Generator[Mark, None, list[Job]]:
    """Grade what waits; return the jobs that were being graded when a process died."""
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in itertools.islice(itertools.cycle(usable_cores()), num_processes):
        cores.put(core)
    running: dict[Future[Mark], Job] = {}
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(num_processes, context, prepare_process, (cores,))
    try:
        while waiting or running:
            # No more than are being worked on: if a process dies, these are all that is lost.
            while waiting and len(running) < num_processes:
                running[pool.submit(grader, waiting[0])] = waiting[0]
                waiting.popleft()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                mark = future.result()
                del running[future]
                yield mark
    except BrokenProcessPool:
        pass
    finally:
        if running:  # interrupted, or broken: nobody waits for what still runs
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
        pool.shutdown(cancel_futures=True)
    return list(running.values())


def on_a_cluster(jobs: Iterable[Job], profile: str, grader: Grader = grade_one) -> Iterator[Mark]:
    """Grade on the engines of an IPython cluster (``ipcluster start``); they need pagedlab, and no shared files.

    Parameters
    ----------
    jobs : iterable of Job
    profile : str
        The IPython profile that the cluster was started with.
    grader : callable

    Yields
    ------
    Mark
        As they come.

    Raises
    ------
    ExerciseError
        If there is no cluster.
    """
    if importlib.util.find_spec("ipyparallel") is None:
        raise ExerciseError('a cluster is reached with ipyparallel: pip install "pagedlab[teacher]"')
    import ipyparallel as ipp

    try:
        client = ipp.Client(profile=profile, timeout=CLUSTER_SECONDS)
    except (OSError, TimeoutError, ipp.error.IPythonError) as error:
        raise ExerciseError(
            f"no cluster of profile {profile!r} answers ({error}): ipcluster start --profile={profile} -n 8"
        ) from None
    with client:
        if not client.ids:
            raise ExerciseError(f"the cluster of profile {profile!r} has no engines yet: wait, or start some")
        view = client.load_balanced_view()
        view.retries = 1  # an engine that dies: once more, on another
        running = {view.apply_async(grader, job): job for job in jobs}
        while running:
            client.wait(list(running), timeout=0.2)
            for result in [result for result in running if result.ready()]:
                job = running.pop(result)
                yield (
                    result.get() if result.successful() else _not_graded(job, f"the engine failed: {_said_by(result)}")
                )


def _said_by(result: Any) -> str:
    error = result.exception()
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _not_graded(job: Job, reason: str) -> Mark:
    about = {name: job[name] for name in ("key", "student", "exercise", "file")}
    return {**about, **unmarked([WHOLE], reason)}
