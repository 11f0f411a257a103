"""Sampling as it is meant: one row, in float64, a token at a time. Slow, and plain enough to be believed.

Numbers that a request gives are rounded to float32 first, as the batch keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagedlab.request import SamplingParams

Floats = npt.NDArray[np.float64]
FORBIDDEN = -math.inf


def float32(number: float) -> float:
    return float(np.float32(number))


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum(), dtype=np.float64)


def reference_rules(
    logits: Floats, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], eos: int | None
) -> Floats:
    """Apply what forbids or shifts tokens, then the penalties."""
    allowed = logits.copy()
    if params.allowed_token_ids is not None:
        for token in range(len(logits)):
            if token not in params.allowed_token_ids:
                allowed[token] = FORBIDDEN
    ruled = allowed.copy()
    for word in params.bad_words_token_ids:
        begun, last = list(word[:-1]), word[-1]
        if len(output) >= len(begun) and list(output[len(output) - len(begun) :]) == begun:
            ruled[last] = FORBIDDEN
    if len(output) < params.min_tokens:
        for token in params.stop_token_ids:
            ruled[token] = FORBIDDEN
        if eos is not None and not params.ignore_eos:
            ruled[eos] = FORBIDDEN
    for token, bias in dict(params.logit_bias or ()).items():
        ruled[token] += float32(bias)
    if ruled.max() == FORBIDDEN:  # nothing is left: only allowed ids count
        ruled = allowed.copy()

    for token in range(len(logits)):
        if token in prompt or token in output:
            if ruled[token] > 0:
                ruled[token] /= float32(params.repetition_penalty)
            else:
                ruled[token] *= float32(params.repetition_penalty)
        ruled[token] -= float32(params.frequency_penalty) * list(output).count(token)
        if token in output:
            ruled[token] -= float32(params.presence_penalty)
    return ruled


def reference_probabilities(ruled: Floats, params: SamplingParams) -> Floats:
    """Return what a random row draws from."""
    kept = ruled / float32(params.temperature)

    probs = softmax(kept)
    kept[probs < float32(params.min_p) * probs.max()] = FORBIDDEN

    if 0 < params.top_k < len(kept):
        kth = sorted(kept, reverse=True)[params.top_k - 1]
        kept[kept < kth] = FORBIDDEN

    probs = softmax(kept)
    before = 0.0
    for place, token in enumerate(sorted(range(len(kept)), key=lambda t: (-kept[t], t))):
        if place > 0 and params.top_p < 1 and before >= float32(params.top_p):
            kept[token] = FORBIDDEN
        before += probs[token]
    return softmax(kept)


def reference_token(
    logits: Floats,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos: int | None,
    noise: Floats | None,
) -> int:
    """Return the token of one row; ``noise`` is exponential, None for a greedy row."""
    ruled = reference_rules(logits, params, prompt, output, eos)
    if params.temperature == 0:
        return int(ruled.argmax())
    assert noise is not None
    return int((reference_probabilities(ruled, params) / noise).argmax())


def reference_logprobs(logits: Floats, token: int, count: int) -> tuple[float, int, list[tuple[int, float]]]:
    """Return a token's log-probability, its rank, and the ``count`` likeliest tokens with theirs."""
    logprobs = np.log(softmax(logits))
    rank = sum(1 for other in logprobs if other >= logprobs[token])
    order = sorted(range(len(logits)), key=lambda t: -logprobs[t])[:count]
    return float(logprobs[token]), rank, [(t, float(logprobs[t])) for t in order]
