"""From logits to one token a row, and how likely it was.

>>> import torch
>>> from pagedlab.batch.sampling_metadata import SamplingMetadata
>>> logits = torch.tensor([[0.0, 3.0, 1.0]])
>>> metadata = SamplingMetadata(bad_words_token_ids={0: ((1,),)}, output_token_ids=[[]], num_logprobs={0: 1})
>>> token_ids = sample(logits, metadata)  # greedy, and the likeliest token is forbidden
>>> token_ids.tolist()
[2]
>>> record = token_logprobs(logits, token_ids, metadata)[0]
>>> record.rank, [token_id for token_id, _ in record.top]
(2, [1])

The order is vLLM's: rules that forbid or shift tokens (allowed ids, bad words, logits processors), penalties, the
likeliest token for greedy rows; for the others temperature, min-p, top-k and top-p, then a draw: the largest of
``p / e`` with ``e`` exponential noise. That *is* a draw from ``p``, without a cumulative sum. Log-probabilities are
those of the logits as the model made them, so nothing here changes logits in place.

What a row gets depends on nothing but its own logits and settings, and (random, without a seed) on chance.

Rules can leave a row nothing, as when a bad word forbids the one token that is allowed now. Then, for this token,
allowed ids alone count; bad words, ``min_tokens`` and biases give way. So a row always has a token.

vLLM counterpart: ``vllm/v1/sample/sampler.py`` (``Sampler``), ``ops/penalties.py``, ``ops/bad_words.py``,
``ops/logprobs.py`` and ``ops/topk_topp_sampler.py`` at 0.25.1. What differs: a row without a token (vLLM takes
whichever forbidden one ``argmax`` finds); log-probabilities are computed only for the rows that want them.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pagedlab.batch.sampling_metadata import SamplingMetadata
from pagedlab.scheduling.output import TokenLogprobs


def sample(logits: Tensor, metadata: SamplingMetadata, discard: npt.NDArray[np.bool_] | None = None) -> Tensor:
    """Choose one token for each row.

    Parameters
    ----------
    logits : Tensor, [num_reqs, vocab_size]
    metadata : SamplingMetadata
    discard : ndarray of bool, [num_reqs], optional
        Rows whose token will be dropped: their generators are not used, so that a seeded request draws the same
        tokens however its prompt was cut into chunks (vLLM draws and then rewinds the generator).

    Returns
    -------
    Tensor, [num_reqs] int64
    """
    logits = process_logits(logits, metadata)
    greedy = logits.argmax(dim=-1)
    if metadata.temperature is None:
        return greedy
    probs = probabilities(logits, metadata)
    noise = torch.empty_like(probs).exponential_()
    for row, generator in metadata.generators.items():
        if discard is None or not discard[row]:
            noise[row].exponential_(generator=generator)
    return torch.where(metadata.temperature == 0.0, greedy, (probs / noise).argmax(dim=-1))


def process_logits(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Apply each row's rules and penalties; a greedy row takes the largest of what comes out.

    Returns
    -------
    Tensor, [num_reqs, vocab_size] float32, or float64 if ``logits`` are
        Forbidden tokens are -inf; a row has at least one other.
    """
    logits = _apply_rules(logits.to(_sampling_dtype(logits.dtype)), metadata)
    return _apply_penalties(logits, metadata)


def probabilities(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Return what random rows draw from: processed logits through temperature, min-p, top-k and top-p.

    Parameters
    ----------
    logits : Tensor, [num_reqs, vocab_size]
        From `process_logits`.
    metadata : SamplingMetadata

    Returns
    -------
    Tensor, [num_reqs, vocab_size]
        Each row sums to 1. A greedy row's are of no use.
    """
    if metadata.temperature is not None:
        temperature = metadata.temperature.to(logits.dtype)
        logits = logits / torch.where(temperature == 0.0, 1.0, temperature)[:, None]
    for processor in metadata.logits_processors:
        if processor.is_argmax_invariant:
            logits = processor.apply(logits)
    return _keep_top(logits, metadata).softmax(dim=-1)


def token_logprobs(
    logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata, discard: npt.NDArray[np.bool_] | None = None
) -> dict[int, TokenLogprobs]:
    """Return how likely the sampled tokens were, by row, for the rows that want to know.

    Parameters
    ----------
    logits : Tensor, [num_reqs, vocab_size]
        As the model made them.
    token_ids : Tensor, [num_reqs] int64
        What `sample` returned.
    metadata : SamplingMetadata
    discard : ndarray of bool, [num_reqs], optional
        Rows whose token will be dropped: they are left out.
    """
    by_count: dict[int, list[int]] = {}  # rows that want equally many: none is given more than it asked for
    for row, count in metadata.num_logprobs.items():
        if discard is None or not discard[row]:
            by_count.setdefault(count, []).append(row)
    records: dict[int, TokenLogprobs] = {}
    for count, rows in by_count.items():
        logprobs = logits[rows].to(_sampling_dtype(logits.dtype)).log_softmax(dim=-1)  # [len(rows), vocab_size]
        tokens = token_ids[rows]
        own = logprobs.gather(1, tokens[:, None])
        ranks = (logprobs >= own).sum(dim=-1)
        top, top_tokens = logprobs.topk(count, dim=-1)
        columns = (tokens, own[:, 0], ranks, top_tokens, top)
        for row, token, logprob, rank, ids, values in zip(rows, *(c.tolist() for c in columns), strict=True):
            records[row] = TokenLogprobs(token, logprob, rank, tuple(zip(ids, values, strict=True)))
    return records


def skip_draws(generator: torch.Generator, count: int, vocab_size: int, dtype: torch.dtype) -> None:
    """Bring a generator to where it stands after ``count`` tokens drawn by `sample` from logits of ``dtype``."""
    noise = torch.empty(vocab_size, dtype=_sampling_dtype(dtype), device=generator.device)
    for _ in range(count):
        noise.exponential_(generator=generator)


def _sampling_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for anything shorter: half precision is too coarse for the tails that top-p cuts."""
    return dtype if dtype == torch.float64 else torch.float32


# --- rules ------------------------------------------------------------------------------------------------------


def _apply_rules(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Forbid tokens and shift logits as each row's request wants; leave every row at least one token."""
    allowed = logits
    if metadata.allowed_token_ids_mask is not None:
        allowed = _or_else(logits.masked_fill(metadata.allowed_token_ids_mask, -torch.inf), logits)
    ruled = _forbid_bad_words(allowed, metadata)
    for processor in metadata.logits_processors:
        if not processor.is_argmax_invariant:
            ruled = processor.apply(ruled)
    return allowed if ruled is allowed else _or_else(ruled, allowed)


def _or_else(logits: Tensor, fallback: Tensor) -> Tensor:
    """Return ``logits``, but ``fallback`` for rows in which nothing is left."""
    return torch.where((logits == -torch.inf).all(dim=-1, keepdim=True), fallback, logits)


def _forbid_bad_words(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Forbid the last token of each bad word whose other tokens are the end of the row's output."""
    rows, tokens = [], []
    for row, words in metadata.bad_words_token_ids.items():
        output = metadata.output_token_ids[row]
        for *begun, last in words:
            if not begun or output[-len(begun) :] == begun:
                rows.append(row)
                tokens.append(last)
    if not rows:
        return logits
    where = torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device)
    return logits.index_put(where, torch.tensor(-torch.inf, dtype=logits.dtype, device=logits.device))


# --- penalties --------------------------------------------------------------------------------------------------


def _apply_penalties(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Change the logits of tokens that were there before: repetition, then frequency and presence."""
    repetition, frequency = metadata.repetition_penalties, metadata.frequency_penalties
    presence, prompt = metadata.presence_penalties, metadata.prompt_token_ids
    if repetition is None or frequency is None or presence is None or prompt is None:
        return logits
    num_reqs, vocab_size = logits.shape
    times = _count_tokens(metadata, logits)  # how often each token is in the output
    in_output = times > 0
    in_prompt = torch.zeros(num_reqs, vocab_size + 1, dtype=torch.bool, device=logits.device)  # the last: padding
    in_prompt = in_prompt.scatter_(1, prompt, True)[:, :vocab_size]
    factor = torch.where(in_prompt | in_output, repetition.to(logits.dtype)[:, None], 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    return logits - frequency.to(logits.dtype)[:, None] * times - presence.to(logits.dtype)[:, None] * in_output


def _count_tokens(metadata: SamplingMetadata, logits: Tensor) -> Tensor:
    """Return how often each token is in each row's output; shape and dtype as ``logits``."""
    outputs = metadata.output_token_ids
    rows = np.repeat(np.arange(len(outputs)), [len(output) for output in outputs])
    tokens = np.fromiter(chain.from_iterable(outputs), dtype=np.int64, count=len(rows))
    flat = torch.from_numpy(rows * logits.shape[1] + tokens).to(logits.device)
    one = torch.ones((), dtype=logits.dtype, device=logits.device)
    return torch.zeros_like(logits).view(-1).scatter_add_(0, flat, one.expand(len(flat))).view_as(logits)


# --- top-k and top-p --------------------------------------------------------------------------------------------


def _keep_top(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Set what is outside top-k and top-p to -inf; the likeliest token always stays.

    Tokens that are exactly as likely as the k-th all stay, as in vLLM. Where top-p cuts between equals, those with
    lower ids stay.
    """
    if metadata.top_k is None and metadata.top_p is None:
        return logits
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    if metadata.top_k is not None:
        kth = ordered.gather(1, metadata.top_k.to(torch.int64)[:, None] - 1)
        logits = logits.masked_fill(logits < kth, -torch.inf)
        ordered = ordered.masked_fill(ordered < kth, -torch.inf)
    if metadata.top_p is not None:
        probs = ordered.softmax(dim=-1)
        before = probs.cumsum(dim=-1) - probs  # the mass of all likelier tokens
        # A row that keeps everything is left alone: rounding could make the sum 1 before the last tokens.
        dropped = (before >= metadata.top_p[:, None]) & (metadata.top_p < 1)[:, None]
        dropped[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(dropped).scatter_(1, tokens, dropped), -torch.inf)
    return logits
