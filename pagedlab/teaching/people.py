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

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedlab.config import CacheConfig, SchedulerConfig
from pagedlab.engine import LLMEngine
from pagedlab.model.loading import LoadedModel, load_model
from pagedlab.request import SamplingParams
from pagedlab.scheduling import Scheduler
from pagedlab.teaching.telling import say
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

_TEXT = "shall I compare thee to a summer's day thou art more lovely and more temperate my lord"


def crowd(number: int, *, words: tuple[int, int], tokens: tuple[int, int]) -> dict[str, tuple[str, int]]:
    """Return many people, the same each time, for the real size.

    Parameters
    ----------
    number : int
    words, tokens : (int, int)
        The fewest and the most words of a prompt, and tokens of an answer.

    >>> list(crowd(2, words=(1, 3), tokens=(4, 4)).values())
    [('and day', 4), ('thou my temperate', 4)]
    """
    dice, known = random.Random(0), _TEXT.split()
    return {
        f"r{index}": (" ".join(dice.choices(known, k=dice.randint(*words))), dice.randint(*tokens))
        for index in range(number)
    }


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
    max_model_len: int | None = None,
    **scheduler_options: Any,
) -> Served:
    """Send all prompts, in order, through a fresh engine of the shipped model, and record it.

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
    max_model_len : int, optional
        The most tokens of one request; None: as many as the model was trained for.
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
        _quill(),
        max_model_len=max_model_len,
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


@functools.cache
def _quill() -> LoadedModel:
    """The shipped model, loaded once for all engines of a lesson: none of them changes it."""
    return load_model("quill", device="auto")


def say_changed(right: Mapping[str, str], wrong: Mapping[str, str]) -> list[str]:
    """Say what became of each person's answer; return those whose answer is another one.

    >>> say_changed({"A": "yes", "B": "no"}, {"A": "yes", "B": "so"})
    A: yes became yes: the same.
    B: no became so: different.
    ['B']
    """
    for name in right:
        verdict = "the same" if wrong[name] == right[name] else "**different**"
        say(f"**{name}**: `{right[name]}` became `{wrong[name]}`: {verdict}.")
    return [name for name in right if wrong[name] != right[name]]
