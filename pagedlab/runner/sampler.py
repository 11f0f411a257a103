"""From logits to one token a row.

>>> import torch
>>> from pagedlab.batch import SamplingMetadata
>>> metadata = SamplingMetadata(temperature=None, top_p=None, top_k=None, generators={})
>>> sample(torch.tensor([[0.0, 3.0, 1.0]]), metadata).tolist()  # all greedy
[1]

A random row divides its logits by the temperature, drops what is outside top-k and top-p, and takes the largest of
``p / e`` with ``e`` exponential noise: that *is* a draw from ``p``, without a cumulative sum.

vLLM counterpart: ``vllm/v1/sample/sampler.py`` (``Sampler``) and ``ops/topk_topp_sampler.py`` at 0.25.1. What differs:
penalties, logprobs, logits processors and masks are not here yet.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pagedlab.batch import SamplingMetadata


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
    logits = logits.to(_sampling_dtype(logits.dtype))
    greedy = logits.argmax(dim=-1)
    if metadata.temperature is None:
        return greedy
    temperature = metadata.temperature.to(logits.dtype)
    is_greedy = temperature == 0.0
    scaled = logits / torch.where(is_greedy, 1.0, temperature)[:, None]
    probs = _keep_top(scaled, metadata).softmax(dim=-1)
    noise = torch.empty_like(probs).exponential_()
    for row, generator in metadata.generators.items():
        if discard is None or not discard[row]:
            noise[row].exponential_(generator=generator)
    return torch.where(is_greedy, greedy, (probs / noise).argmax(dim=-1))


def _sampling_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for anything shorter: half precision is too coarse for the tails that top-p cuts."""
    return dtype if dtype == torch.float64 else torch.float32


def skip_draws(generator: torch.Generator, count: int, vocab_size: int, dtype: torch.dtype) -> None:
    """Bring a generator to where it stands after ``count`` tokens drawn by `sample` from logits of ``dtype``."""
    noise = torch.empty(vocab_size, dtype=_sampling_dtype(dtype), device=generator.device)
    for _ in range(count):
        noise.exponential_(generator=generator)


def _keep_top(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Set what is outside top-k and top-p to -inf; the likeliest token always stays."""
    if metadata.top_k is None and metadata.top_p is None:
        return logits
    ordered, tokens = logits.sort(dim=-1, descending=True)
    dropped = torch.zeros_like(ordered, dtype=torch.bool)
    if metadata.top_k is not None:
        ranks = torch.arange(ordered.shape[-1], device=ordered.device)
        dropped |= ranks >= metadata.top_k[:, None]
        ordered = ordered.masked_fill(dropped, -torch.inf)
    if metadata.top_p is not None:
        probs = ordered.softmax(dim=-1)
        before = probs.cumsum(dim=-1) - probs  # the mass of all likelier tokens
        dropped |= before >= metadata.top_p[:, None]
        dropped[:, 0] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter_(1, tokens, dropped), -torch.inf)
