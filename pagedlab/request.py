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
0.25.1. What differs: `SamplingParams` cannot change, and holds bad words as token ids, since the tokenizer is the
engine's (vLLM: strings, ``bad_words``); drafts, multi-modal inputs and async placeholders are not here yet.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagedlab.config import require_bool, require_int
from pagedlab.errors import ConfigError, RequestError

MIN_TEMPERATURE = 0.01
"""Temperatures above 0 are at least this: smaller ones would only lose precision (vLLM: ``_MAX_TEMP``)."""

MAX_LOGIT_BIAS = 100.0
"""The largest logit bias, either way: enough to force a token or to forbid it."""

_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.001, 1000.0),  # further out, scaled logits could leave the range of float32
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it stops.

    Parameters
    ----------
    max_tokens : int
        The most tokens to generate.
    min_tokens : int
        Before it has generated this many, the request cannot stop: its stop tokens, end-of-text among them, are not
        sampled.
    temperature : float
        0 is greedy, and ``top_p``, ``top_k`` and ``min_p`` are then set to what they are without use; values between 0
        and 0.01 are raised to 0.01. Both as in vLLM.
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
    min_p : float
        Sample from tokens at least this fraction as likely as the likeliest; 0 means all.
    frequency_penalty, presence_penalty : float
        What a token's logit loses for each time it is in the output, and once if it is there at all; -2 to 2.
    repetition_penalty : float
        By how much the logit of a token of the prompt or the output is divided (multiplied if it is negative); 1 means
        not at all.
    logit_bias : mapping of int to float, optional
        What is added to a token's logit, -100 to 100. It is kept as a tuple of pairs, in the order of token ids.
    allowed_token_ids : tuple of int, optional
        If given, no other token is sampled.
    bad_words_token_ids : tuple of tuple of int
        Sequences of tokens that the output must not contain: the last token of one is forbidden while the output ends
        with the rest of it. What is in the prompt does not count.
    logprobs : int or None
        If given, each token comes with its log-probability and those of this many likeliest tokens; 0: of none beside
        it, -1: of the whole vocabulary.

    Attributes
    ----------
    is_plain : bool
        Whether it does without ``top_p``, ``top_k``, penalties, allowed tokens and log-probabilities, as most do.

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
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    is_plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, 1)
        require_int("min_tokens", self.min_tokens, 0)
        require_int("top_k", self.top_k, 0)
        require_bool("ignore_eos", self.ignore_eos)
        if self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens}): lower it")
        if self.seed is not None:
            require_int("seed", self.seed, 0, 2**63 - 1)
        if self.logprobs is not None:
            require_int("logprobs", self.logprobs, -1)
        for name, (low, high) in _RANGES.items():
            self._set(name, _checked_number(name, getattr(self, name), low, high))
        if self.top_p == 0.0:
            raise ConfigError("top_p is 0: give a number above 0; for greedy sampling use temperature=0")
        if self.greedy:  # what narrows a draw has nothing to narrow
            for name, value in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                self._set(name, value)
        if 0 < self.temperature < MIN_TEMPERATURE:
            self._set("temperature", MIN_TEMPERATURE)
        self._set("stop_token_ids", _checked_token_ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _checked_token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ConfigError("allowed_token_ids is empty, so nothing could be sampled: give ids, or None for all")
        self._set("bad_words_token_ids", _checked_bad_words(self.bad_words_token_ids))
        if self.logit_bias is not None:
            self._set("logit_bias", _checked_logit_bias(self.logit_bias))
        options = (self.allowed_token_ids is not None, self.logprobs is not None, self.has_penalties)
        self._set("is_plain", self.top_p == 1 and self.top_k == 0 and not any(options))

    def _set(self, name: str, value: Any) -> None:
        """Write a field while the object is made; later nobody can."""
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits of the next one."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0 or self.repetition_penalty != 1

    def check_vocabulary(self, vocab_size: int, eos_token_id: int | None) -> None:
        """Raise unless a model with this vocabulary can sample so.

        Raises
        ------
        ConfigError
            If a token id or ``logprobs`` is beyond the vocabulary, or no token could be sampled first.
        """
        words = self.bad_words_token_ids
        for name, token_ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("bad_words_token_ids", [token for word in words for token in word]),
            ("logit_bias", dict(self.logit_bias or ())),
        ):
            if (largest := max(token_ids, default=0)) >= vocab_size:
                raise ConfigError(
                    f"{name} holds {largest}, which is no token id here: give ids from 0 to {vocab_size - 1}"
                )
        if self.logprobs is not None and self.logprobs > vocab_size:
            raise ConfigError(
                f"logprobs is {self.logprobs}, and the vocabulary has {vocab_size} tokens: give at most that, or -1 "
                "for all of them"
            )
        forbidden = {word[0] for word in words if len(word) == 1}
        if self.min_tokens > 0:
            forbidden.update(self.stop_token_ids)
            if eos_token_id is not None and not self.ignore_eos:
                forbidden.add(eos_token_id)
        if all(token in forbidden for token in self.allowed_token_ids or range(vocab_size)):
            raise ConfigError(
                "every token that may be sampled is a bad word, or a stop token that min_tokens forbids: "
                "allow another, or leave one of the settings out"
            )


def _checked_number(name: str, value: Any, low: float, high: float) -> float:
    """Return ``value`` as a float, or raise `ConfigError` if it is no number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        kind = type(value).__name__
        raise ConfigError(f"{name} is {value!r} ({kind}): give an int or float from {low:g} to {high:g}")
    return float(value)


def _checked_token_ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name} is {value!r}: give a list or tuple of token ids")
    for token in value:
        require_int(f"a token id in {name}", token, 0)
    return tuple(value)


def _checked_bad_words(value: Any) -> tuple[tuple[int, ...], ...]:
    name = "bad_words_token_ids"
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name} is {value!r}: give a list or tuple of bad words, each a tuple of token ids")
    words = tuple(_checked_token_ids(f"a bad word in {name}", word) for word in value)
    if not all(words):
        raise ConfigError(f"{name} holds an empty bad word: give each at least one token id, or leave it out")
    return words


def _checked_logit_bias(value: Any) -> tuple[tuple[int, float], ...] | None:
    try:
        biases = dict(value)
    except (TypeError, ValueError):
        raise ConfigError(f"logit_bias is {value!r}: give a dict of token id to bias") from None
    for token in biases:
        require_int("a token id in logit_bias", token, 0)
    limit = MAX_LOGIT_BIAS
    checked = {t: _checked_number(f"the logit bias of token {t}", bias, -limit, limit) for t, bias in biases.items()}
    return tuple(sorted(checked.items())) or None


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
        0 for none, at most 2^31 - 1; keeps its KV apart from that of other adapters.
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
        require_int("lora_id", lora_id, 0, 2**31 - 1)
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
