"""A request as the scheduler sees it, and how its tokens are to be sampled.

>>> request = Request("A", (72, 105), SamplingParams(max_tokens=2), arrival_time=0)
>>> request.num_tokens, request.num_computed_tokens
(2, 0)
>>> request.append_output_token_id(33)
>>> request.all_token_ids
[72, 105, 33]

Three lengths say everything about a request: ``0 <= num_computed_tokens <= num_tokens`` and
``num_tokens == num_prompt_tokens + num_output_tokens``. There is no "prefill phase": a request whose computed
tokens lag behind its tokens catches up, whether the rest is prompt or output.

vLLM counterpart: ``vllm/v1/request.py`` (``Request``, ``RequestStatus``) and ``vllm/sampling_params.py`` at
0.25.1. What differs: drafts, multi-modal inputs and async placeholders are not here yet.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedlab.config import require_bool, require_int
from pagedlab.errors import ConfigError, RequestError

MIN_TEMPERATURE = 0.01
"""Temperatures above 0 are at least this: smaller ones would only lose precision (vLLM: ``_MAX_TEMP``)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it stops.

    Parameters
    ----------
    max_tokens : int
        The most tokens to generate.
    min_tokens : int
        No stop token ends the request before it has generated this many.
    temperature : float
        0 is greedy; values between 0 and 0.01 are raised to 0.01, as in vLLM.
    top_p : float
        Sample from the smallest set of tokens whose probability reaches this; in (0, 1].
    top_k : int
        Sample from the k likeliest tokens; 0 means all.
    seed : int or None
        A generator of the request's own: its tokens then do not depend on who else is in the batch.
    stop_token_ids : tuple of int
        Tokens that end the request.
    ignore_eos : bool
        Whether the model's end-of-text token is a token like any other.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, 1)
        require_int("min_tokens", self.min_tokens, 0)
        require_int("top_k", self.top_k, 0)
        require_bool("ignore_eos", self.ignore_eos)
        if self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens}): lower it")
        if self.seed is not None:
            require_int("seed", self.seed, 0, 2**63 - 1)
        for name, value, low, high in (("temperature", self.temperature, 0.0, 100.0), ("top_p", self.top_p, 0.0, 1.0)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                kind = type(value).__name__
                raise ConfigError(f"{name} is {value!r} ({kind}): give an int or float from {low:g} to {high:g}")
            object.__setattr__(self, name, float(value))
        if self.top_p == 0.0:
            raise ConfigError("top_p is 0: give a number above 0; for greedy sampling use temperature=0")
        object.__setattr__(self, "stop_token_ids", _checked_token_ids(self.stop_token_ids))
        if 0 < self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", MIN_TEMPERATURE)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


def _checked_token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"stop_token_ids is {value!r}: give a list or tuple of token ids")
    for token in value:
        require_int("a stop token id", token, 0)
    return tuple(value)


class RequestStatus(enum.IntEnum):
    """Where a request is in its life. Everything after PREEMPTED is finished."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> str | None:
        """``"stop"``, ``"length"`` or ``"abort"``; None while the request lives."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
}


class Request:
    """One request on the scheduler's side.

    Parameters
    ----------
    request_id : str
        Unique among live requests.
    prompt_token_ids : sequence of int
        At least one token.
    sampling_params : SamplingParams
        How to sample and when to stop.
    arrival_time : float
        For the order of queues; any clock, as long as it is one.
    eos_token_id : int or None
        The token that ends the text, unless ``sampling_params.ignore_eos``.
    priority : int
        Smaller runs first, where the scheduler's policy is ``"priority"``.
    lora_id : int
        0 for none; keeps its KV apart from that of other adapters.
    cache_salt : str or None
        Only requests with the same salt share cached blocks.

    Raises
    ------
    RequestError
        If the id is not a non-empty string or the prompt is empty.
    """

    __slots__ = (
        "all_token_ids",
        "arrival_time",
        "block_hashes",
        "cache_salt",
        "eos_token_id",
        "lora_id",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "priority",
        "request_id",
        "sampling_params",
        "status",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        arrival_time: float,
        eos_token_id: int | None = None,
        *,
        priority: int = 0,
        lora_id: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        if not isinstance(request_id, str) or not request_id:
            raise RequestError(f"the request id is {request_id!r}: give a non-empty string")
        if isinstance(prompt_token_ids, (str, bytes)):
            raise RequestError(f"request {request_id!r}: the prompt is text; a Request takes token ids")
        require_int("priority", priority, -(2**63), 2**63 - 1)
        require_int("lora_id", lora_id, 0, 2**63 - 1)
        if cache_salt is not None and not isinstance(cache_salt, str):
            raise RequestError(f"request {request_id!r}: cache_salt is {cache_salt!r}: give a string or None")
        if len(prompt_token_ids) == 0:
            raise RequestError(f"request {request_id!r} has an empty prompt: give at least one token")
        self.request_id = request_id
        self.sampling_params = sampling_params
        self.arrival_time = arrival_time
        self.eos_token_id = None if sampling_params.ignore_eos else eos_token_id
        self.all_token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.priority = priority
        self.lora_id = lora_id
        self.cache_salt = cache_salt
        self.block_hashes: list[bytes] = []
        self.status = RequestStatus.WAITING

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens together."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """All tokens that may end the request, end-of-text among them."""
        eos = () if self.eos_token_id is None else (self.eos_token_id,)
        return (*eos, *self.sampling_params.stop_token_ids)

    def max_num_tokens(self, max_model_len: int) -> int:
        """Return the number of tokens, prompt and output, with which the request ends at the latest."""
        return min(self.num_prompt_tokens + self.sampling_params.max_tokens, max_model_len)

    @property
    def is_prefill_chunk(self) -> bool:
        """Whether some of its tokens are not computed: what would be sampled now is dropped."""
        return self.num_computed_tokens < self.num_tokens

    @property
    def queue_key(self) -> tuple[int, float, str]:
        """The order of priority queues, smaller first."""
        return (self.priority, self.arrival_time, self.request_id)

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    def append_output_token_id(self, token_id: int) -> None:
        self.all_token_ids.append(token_id)

    def restart(self, num_output_tokens: int) -> None:
        """Go back to the first ``num_output_tokens`` outputs, none of them computed, waiting."""
        del self.all_token_ids[self.num_prompt_tokens + num_output_tokens :]
        self.block_hashes.clear()
        self.num_computed_tokens = 0
        self.status = RequestStatus.WAITING

    def check_stop(self, max_model_len: int) -> bool:
        """Set the finished status if the last token ends the request, and say whether it did.

        The order is vLLM 0.25.1's: fewer than ``min_tokens`` outputs go on; then end-of-text, stop tokens, length. At
        ``max_model_len`` a request ends in any case, since there is no room for another token.
        """
        params = self.sampling_params
        num_tokens = len(self.all_token_ids)
        num_output_tokens = num_tokens - self.num_prompt_tokens
        if num_output_tokens < params.min_tokens and num_tokens < max_model_len:
            return False
        last = self.all_token_ids[-1]
        if last == self.eos_token_id or last in params.stop_token_ids:
            self.status = RequestStatus.FINISHED_STOPPED
            return True
        if num_tokens >= max_model_len or num_output_tokens >= params.max_tokens:
            self.status = RequestStatus.FINISHED_LENGTH_CAPPED
            return True
        return False

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, computed {self.num_computed_tokens} "
            f"of {self.num_tokens} tokens, {self.num_output_tokens} generated)"
        )
