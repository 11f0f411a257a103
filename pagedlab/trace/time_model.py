"""From steps to milliseconds: a roofline of one step on a named GPU.

>>> step = StepWork(query_lens=(1,) * 64, seq_lens=(2048,) * 64)  # 64 decodes
>>> estimate = estimate_step(step, GPUS["H200"], MODELS["Llama-3-8B"])
>>> estimate.bound, round(estimate.memory_milliseconds, 1)
('memory', 6.7)
>>> prefill = StepWork(query_lens=(8192,), seq_lens=(8192,))  # one long prompt
>>> estimate_step(prefill, GPUS["H200"], MODELS["Llama-3-8B"]).bound
'compute'

A step reads all weights once, however many tokens it computes, and the keys and values of every request; it does a
number of operations per token. It takes as long as the slower of the two, at the chip's peak rates, plus a fixed
overhead. That is a floor, not a forecast: what it is for is to compare schedules.

vLLM has no counterpart. Figures: GPUs from NVIDIA's datasheets (dense bf16, no sparsity), model shapes from the models'
``config.json``.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pagedlab.errors import TraceError
from pagedlab.events import InputsPrepared, RequestAdded, StepFinished, StepStarted, TokenAccepted
from pagedlab.trace.store import Trace


@dataclass(frozen=True, slots=True)
class GPU:
    """A chip's peak rates.

    Attributes
    ----------
    bandwidth : float
        Bytes per second of device memory.
    flops : float
        Dense bf16 operations per second.
    source : str
        Where the two figures are from.
    """

    name: str
    bandwidth: float
    flops: float
    source: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("H200", 4.8e12, 989e12, "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
        GPU("H100", 3.35e12, 989e12, "NVIDIA H100 Tensor Core GPU datasheet, SXM"),
        GPU("A100", 2.039e12, 312e12, "NVIDIA A100 Tensor Core GPU datasheet, SXM 80 GB"),
        GPU("L4", 300e9, 121e12, "NVIDIA L4 Tensor Core GPU datasheet (half of the figure with sparsity)"),
    )
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a decoder costs time. ``element_bytes`` is the size of one parameter and of one K or V element."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    source: str
    element_bytes: int = 2

    @property
    def layer_parameters(self) -> int:
        """Parameters that every token is multiplied with: projections and feed-forward of all layers."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def output_parameters(self) -> int:
        """Parameters of the output projection, for sampled tokens only."""
        return self.hidden_size * self.vocab_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token, all layers.

        >>> MODELS["Llama-3-8B"].kv_bytes_per_token
        131072
        """
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.element_bytes


MODELS = {
    model.name: model
    for model in (
        ModelShape("Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128_256, "config.json of Meta-Llama-3-8B"),
        ModelShape("Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151_936, "config.json of Qwen3-0.6B"),
        ModelShape("quill", 5, 192, 480, 6, 2, 32, 257, "pagedlab/model/weights/quill/config.json", element_bytes=4),
    )
}


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes: tokens and total length (after the step) of each request in it."""

    query_lens: Sequence[int]
    seq_lens: Sequence[int]

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens)


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """The two sides of the roofline and what follows, in milliseconds."""

    memory_milliseconds: float
    compute_milliseconds: float
    overhead_milliseconds: float

    @property
    def bound(self) -> str:
        """``"memory"`` or ``"compute"``: which side is the slower."""
        return "memory" if self.memory_milliseconds >= self.compute_milliseconds else "compute"

    @property
    def milliseconds(self) -> float:
        return max(self.memory_milliseconds, self.compute_milliseconds) + self.overhead_milliseconds


STEP_OVERHEAD_SECONDS = 1 / 327
"""Host time of a step that nothing hides: vLLM 0.25.1's own classes, 256 decodes, 327 steps/s on a 2-core machine,
2026-11-29. With async scheduling most of it overlaps with the GPU: give 0 for that."""


def estimate_step(
    work: StepWork, gpu: GPU, model: ModelShape, overhead_seconds: float = STEP_OVERHEAD_SECONDS
) -> StepEstimate:
    """Return the least time that one step can take.

    Parameters
    ----------
    work : StepWork
    gpu : GPU
    model : ModelShape
    overhead_seconds : float
        Launches and host work that nothing hides.
    """
    if not work.num_tokens:
        return StepEstimate(0.0, 0.0, overhead_seconds * 1e3)
    num_reqs = len(work.query_lens)
    read = (model.layer_parameters + model.output_parameters) * model.element_bytes
    read += sum(work.seq_lens) * model.kv_bytes_per_token
    written = work.num_tokens * model.kv_bytes_per_token
    operations = 2 * model.layer_parameters * work.num_tokens + 2 * model.output_parameters * num_reqs
    # A query at position p attends to p + 1 keys: two products of head_dim for each, per head and layer.
    pairs = sum(q * s - q * (q - 1) // 2 for q, s in zip(work.query_lens, work.seq_lens, strict=True))
    operations += 4 * pairs * model.num_heads * model.head_dim * model.num_layers
    return StepEstimate((read + written) / gpu.bandwidth * 1e3, operations / gpu.flops * 1e3, overhead_seconds * 1e3)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When a request's tokens came, in milliseconds from the start of the trace.

    An id that was used again after its request had ended has an entry for each of its requests.
    """

    request_id: str
    added: float
    token_times: tuple[float, ...]

    @property
    def time_to_first_token(self) -> float:
        """Milliseconds from the request's arrival to its first token."""
        return self.token_times[0] - self.added

    @property
    def inter_token_latencies(self) -> tuple[float, ...]:
        """Milliseconds between neighbouring tokens."""
        return tuple(b - a for a, b in itertools.pairwise(self.token_times))


@dataclass(frozen=True, slots=True)
class Timeline:
    """A trace in modelled time. ``step_ends`` and all times are milliseconds."""

    steps: tuple[StepEstimate, ...]
    step_ends: tuple[float, ...]
    requests: tuple[RequestTimes, ...]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of modelled time."""
        tokens = sum(len(request.token_times) for request in self.requests)
        return tokens / self.step_ends[-1] * 1e3 if self.step_ends and self.step_ends[-1] else 0.0

    @property
    def mean_time_to_first_token(self) -> float:
        """Over all requests that got a token; nan if none did."""
        times = [request.time_to_first_token for request in self.requests if request.token_times]
        return statistics.fmean(times) if times else float("nan")

    @property
    def mean_inter_token_latency(self) -> float:
        """Over all pairs of neighbouring tokens; nan if no request has two."""
        latencies = [latency for request in self.requests for latency in request.inter_token_latencies]
        return statistics.fmean(latencies) if latencies else float("nan")


def timeline(trace: Trace, gpu: GPU, model: ModelShape, overhead_seconds: float = STEP_OVERHEAD_SECONDS) -> Timeline:
    """Put a trace on a GPU's clock: each step takes what `estimate_step` says.

    A request that was added between two steps is taken to have come at the end of the earlier one; one that was added
    before the recording began, at its start.

    Raises
    ------
    TraceError
        If no step of the trace has finished.
    """
    now = 0.0
    lives: list[tuple[str, float, list[float]]] = []  # id, added, times of its tokens
    tokens: dict[str, list[float]] = {}  # the times of the request that has the id now
    estimates: list[StepEstimate] = []
    ends: list[float] = []
    work = StepWork((), ())
    accepted: list[str] = []
    for record in trace:
        match record.event:
            case RequestAdded(request_id=request_id):
                tokens[request_id] = []
                lives.append((request_id, now, tokens[request_id]))
            case StepStarted():
                work, accepted = StepWork((), ()), []
            case InputsPrepared(query_start_loc=starts, seq_lens=seq_lens):
                work = StepWork(tuple(b - a for a, b in itertools.pairwise(starts)), seq_lens)
            case TokenAccepted(request_id=request_id):
                accepted.append(request_id)
            case StepFinished():
                estimates.append(estimate_step(work, gpu, model, overhead_seconds))
                now += estimates[-1].milliseconds
                ends.append(now)
                for request_id in accepted:
                    if request_id not in tokens:  # it was there before the recording
                        tokens[request_id] = []
                        lives.append((request_id, 0.0, tokens[request_id]))
                    tokens[request_id].append(now)
    if not estimates:
        raise TraceError("the trace has no finished step: record while the engine runs")
    requests = tuple(RequestTimes(name, added, tuple(times)) for name, added, times in lives)
    return Timeline(tuple(estimates), tuple(ends), requests)
