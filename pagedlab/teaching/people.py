"""The people of the course: seven requests that come back in every lesson, and a small engine that serves them.

>>> prompt, length = PEOPLE["A"]
>>> prompt, length
('To be, or not ', 4)
>>> served = serve({"A": PEOPLE["A"]})
>>> served.trace.num_steps, len(served.texts["A"])
(4, 4)

How many tokens each of them wants is what the requests A to G of the chart of static and continuous batching take: four
seats and continuous batching serve all seven in twelve steps.

vLLM has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedlab.config import CacheConfig, SchedulerConfig
from pagedlab.engine import LLMEngine
from pagedlab.request import SamplingParams
from pagedlab.scheduling import Scheduler
from pagedlab.trace import Trace, record

PEOPLE: Mapping[str, tuple[str, int]] = {
    "A": ("To be, or not ", 4),
    "B": ("Farewell, ", 12),
    "C": ("Shall I compare thee to a ", 6),
    "D": ("All the world's ", 3),
    "E": ("Once more unto ", 5),
    "F": ("The quality of ", 7),
    "G": ("Now is the ", 6),
}
"""By name: a prompt, and how many tokens are wanted."""


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine did for some people.

    Attributes
    ----------
    texts : dict of str to str
        The answers, by name.
    trace : Trace
        The recording.
    engine : LLMEngine
        As it is afterwards.
    """

    texts: dict[str, str]
    trace: Trace
    engine: LLMEngine


def serve(
    people: Mapping[str, tuple[str, int]] = PEOPLE,
    *,
    seats: int = 4,
    budget: int = 128,
    block_size: int = 4,
    num_blocks: int | None = None,
    prefix_caching: bool = False,
    scheduler_cls: type[Scheduler] = Scheduler,
    model: Any = "quill",
    **scheduler_options: Any,
) -> Served:
    """Send all prompts, in order, through a fresh engine, and record it.

    Parameters
    ----------
    people : mapping of str to (str, int)
        By name: a prompt, and how many tokens are wanted; they are chosen greedily.
    seats, budget : int
        ``max_num_seqs`` and ``max_num_batched_tokens``.
    block_size : int
        Tokens in a block.
    num_blocks : int, optional
        Blocks of the pool, the null block among them; None: as many as the seats can ever need.
    prefix_caching : bool
    scheduler_cls : type of Scheduler
        `StaticBatchScheduler` for the baseline.
    model : str, path or Decoder
        As for `LLMEngine`.
    **scheduler_options
        Further fields of `SchedulerConfig`.

    Returns
    -------
    Served

    Raises
    ------
    ConfigError, RequestError
        As `LLMEngine` and its ``add_request``.
    """
    engine = LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, **scheduler_options),
        cache_config=CacheConfig(block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=prefix_caching),
        scheduler_cls=scheduler_cls,
    )
    recorder = record(engine)
    for name, (prompt, length) in people.items():
        engine.add_request(name, prompt, SamplingParams(max_tokens=length, temperature=0, ignore_eos=True))
    texts = dict.fromkeys(people, "")
    while engine.has_unfinished_requests():
        for output in engine.step():
            texts[output.request_id] += output.new_text
    return Served(texts, recorder.stop(), engine)
