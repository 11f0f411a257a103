"""The model runner: beats 2 and 3 of a step.

``prepare`` turns the scheduler's decision into tensors: it changes the persistent batch where it differs
(`update_states`), then reads one flat batch of tokens out of it (`prepare_inputs`). ``execute`` runs the model over
that batch on paged memory and samples.

The flat batch of three rows that compute 1, 1 and 4 tokens:

    row              0  1  2  2  2  2
    positions        9  5  0  1  2  3        num_computed_tokens + 0, 1, 2 ...
    query_start_loc  0  1  2           6     where each row begins
    logits_indices   0  1           5        the last token of each row
    discard          -  -  yes if row 2 has more of its prompt to come

vLLM counterpart: ``vllm/v1/worker/gpu_model_runner.py`` (``GPUModelRunner._update_states``, ``._prepare_inputs``,
``.execute_model``) at 0.25.1. What differs: drafts, CUDA graphs and padding are not here yet.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagedlab.batch import CachedRequestState, CpuGpuBuffer, InputBatch, SamplingMetadata
from pagedlab.events import ForwardFinished, InputsPrepared, Observer, TokenSampled
from pagedlab.kernels import backend
from pagedlab.kvcache.manager import BlockIds
from pagedlab.model.decoder import Decoder
from pagedlab.runner.attention import AttentionMetadata, KVCache, PagedAttention
from pagedlab.runner.reorder import regions, swaps_to_sort
from pagedlab.runner.sampler import sample, skip_draws
from pagedlab.scheduling.output import NewRequestData, SchedulerOutput

ONE_THREAD_PARAMETERS = 20_000_000
"""Models below this size run on one CPU thread."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Everything one forward pass needs. Tensors are views of persistent buffers, valid until the next `prepare`.

    Attributes
    ----------
    req_ids : tuple of str
        Requests in batch order, which is not the scheduling order.
    input_ids : Tensor, [num_tokens] int32
    positions : Tensor, [num_tokens] int64
    query_start_loc : ndarray, [num_reqs + 1] int32
    seq_lens : ndarray, [num_reqs] int32
        Tokens of each request after this step.
    logits_indices : ndarray, [num_reqs] int32
    discard : ndarray, [num_reqs] bool
        True for a partial prefill: what is sampled for it is dropped.
    block_table : Tensor, [num_reqs, columns] int32
        On the device, of the group that the model's layers are in.
    slot_mapping : Tensor, [num_tokens] int64
        Where each token's K and V go, in the same group.
    sampling : SamplingMetadata
    """

    req_ids: tuple[str, ...]
    input_ids: torch.Tensor
    positions: torch.Tensor
    query_start_loc: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    logits_indices: npt.NDArray[np.int32]
    discard: npt.NDArray[np.bool_]
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    sampling: SamplingMetadata

    def to_event(self) -> InputsPrepared:
        """Return the same numbers as an event."""
        arrays = (
            self.input_ids,
            self.positions,
            self.query_start_loc,
            self.seq_lens,
            self.logits_indices,
            self.discard,
        )
        return InputsPrepared(self.req_ids, *(tuple(array.tolist()) for array in arrays))


@dataclass(frozen=True, slots=True)
class _SteadyRows:
    """Where the requests of the scheduler's last output are, in its order; valid while it sends the same tuple."""

    req_ids: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    states: list[CachedRequestState]


class GPUModelRunner:
    """Runs the model for the scheduler, on a GPU or a CPU.

    Parameters
    ----------
    model : Decoder
        On the device it is to run on.
    max_num_reqs, max_model_len, max_num_batched_tokens, num_blocks : int
        Sizes; all memory is taken here, once.
    block_sizes : tuple of int
        Tokens in a block, per KV cache group. The model's layers are in the first group.
    decode_threshold : int or None
        The largest query length that counts as a decode when rows are put in order, decodes first; None: no order.
    slot_mapping_backend : {"numpy", "triton"} or None
        None: Triton on a GPU, NumPy elsewhere, since the interpreter is slow.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        num_blocks: int,
        block_sizes: tuple[int, ...],
        decode_threshold: int | None = None,
        slot_mapping_backend: str | None = None,
    ) -> None:
        parameter = next(model.parameters())
        device, config = parameter.device, model.config
        self.model = model
        self.device = device
        self.observer: Observer | None = None
        self.decode_threshold = decode_threshold
        self.requests: dict[str, CachedRequestState] = {}
        self._make_batch = functools.partial(
            InputBatch, max_num_reqs, max_model_len, max_num_batched_tokens, config.vocab_size, block_sizes, device
        )
        self.input_batch = self._make_batch()
        self.kv_cache = KVCache(
            config.num_hidden_layers,
            num_blocks,
            block_sizes[0],
            config.num_key_value_heads,
            config.head_dim,
            parameter.dtype,
            device,
        )
        on_gpu = device.type == "cuda" and backend().name == "cuda"
        self.slot_mapping_backend = slot_mapping_backend or ("triton" if on_gpu else "numpy")
        self._is_small = sum(p.numel() for p in model.parameters()) < ONE_THREAD_PARAMETERS
        self._steady_rows: _SteadyRows | None = None
        self._input_ids = CpuGpuBuffer((max_num_batched_tokens,), torch.int32, device)
        self._positions = CpuGpuBuffer((max_num_batched_tokens,), torch.int64, device)
        self._query_start_loc = CpuGpuBuffer((max_num_reqs + 1,), torch.int32, device)

    # --- beat 2: prepare --------------------------------------------------------------------------------

    def prepare(self, output: SchedulerOutput) -> ModelInputs | None:
        """Bring the batch up to date and build the inputs of the forward pass; None if nothing is scheduled."""
        with self._threads():
            self.update_states(output)
            return self.prepare_inputs(output) if output.scheduled else None

    def update_states(self, output: SchedulerOutput) -> None:
        """Change the persistent batch where this step differs from the last, in vLLM's order."""
        steady = self._steady_rows
        if (
            steady is not None
            and steady.req_ids is output.scheduled_cached_reqs.req_ids
            and not (output.scheduled_new_reqs or output.finished_req_ids)
        ):
            self._update_steady_rows(steady, output)
            return
        self._steady_rows = None
        batch = self.input_batch
        # Who ended is forgotten, first of all: the same id may come again in this very step.
        for req_id in sorted(output.finished_req_ids):
            self.requests.pop(req_id, None)
            batch.remove_request(req_id)
        # Who is not scheduled leaves the batch but keeps its state. A resumed request comes back from scratch.
        cached = output.scheduled_cached_reqs
        staying = output.num_scheduled_tokens.keys() - cached.resumed_req_ids
        for req_id in [req_id for req_id in batch.req_id_to_index if req_id not in staying]:
            batch.remove_request(req_id)

        to_add = [self._new_state(data) for data in output.scheduled_new_reqs]
        new_block_ids = dict(cached.new_block_ids)
        for req_id, num_computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            state = self.requests[req_id]
            state.num_computed_tokens = num_computed_tokens
            blocks = new_block_ids.get(req_id)
            if req_id in cached.resumed_req_ids:
                state.block_ids = blocks or state.block_ids
            elif blocks is not None:
                state.extend_block_ids(blocks)
            row = batch.req_id_to_index.get(req_id)
            if row is None:
                to_add.append(state)
                continue
            batch.rows.num_computed_tokens[row] = num_computed_tokens
            if blocks is not None:
                batch.append_blocks(req_id, blocks)
        for state in to_add:
            batch.add_request(state)
        batch.condense()
        self._reorder(output)
        batch.refresh_metadata()
        if not to_add:
            self._steady_rows = self._remember_rows(output)

    def _remember_rows(self, output: SchedulerOutput) -> _SteadyRows:
        """Keep what stays the same as long as the scheduler sends the same requests, one token each."""
        req_ids = output.scheduled_cached_reqs.req_ids
        rows = np.array([self.input_batch.req_id_to_index[req_id] for req_id in req_ids], dtype=np.int64)
        return _SteadyRows(req_ids, rows, [self.requests[req_id] for req_id in req_ids])

    def _update_steady_rows(self, steady: _SteadyRows, output: SchedulerOutput) -> None:
        """Do `update_states` for a batch in which nobody comes, goes or moves: counters and new blocks are all."""
        cached = output.scheduled_cached_reqs
        self.input_batch.rows.num_computed_tokens[steady.rows] = cached.num_computed_tokens
        for state, num_computed_tokens in zip(steady.states, cached.num_computed_tokens, strict=True):
            state.num_computed_tokens = num_computed_tokens
        for req_id, blocks in cached.new_block_ids:
            self.requests[req_id].extend_block_ids(blocks)
            self.input_batch.append_blocks(req_id, blocks)
        if self._reorder(output):
            self._steady_rows = self._remember_rows(output)
        self.input_batch.refresh_metadata()

    def _reorder(self, output: SchedulerOutput) -> bool:
        """Put decodes first, if the attention kernel wants it; return whether a row moved."""
        if self.decode_threshold is None:
            return False
        batch = self.input_batch
        rows, num_reqs = batch.rows, batch.num_reqs
        row_regions = regions(
            rows.num_computed_tokens[:num_reqs],
            self._query_lens(batch.req_ids, output),
            rows.num_prompt_tokens[:num_reqs],
            self.decode_threshold,
        )
        moved = False
        for first, second in swaps_to_sort(row_regions):
            batch.swap_rows(first, second)
            moved = True
        return moved

    def _new_state(self, data: NewRequestData) -> CachedRequestState:
        state = CachedRequestState(
            data.request_id,
            data.prompt_token_ids,
            data.sampling_params,
            data.block_ids,
            data.num_computed_tokens,
            list(data.output_token_ids),
            self._generator(data),
        )
        self.requests[data.request_id] = state
        return state

    def _generator(self, data: NewRequestData) -> torch.Generator | None:
        """Return the generator of a seeded request, advanced past the tokens it has."""
        if data.sampling_params.seed is None:
            return None
        generator = torch.Generator(self.device).manual_seed(data.sampling_params.seed)
        if not data.sampling_params.greedy:
            skip_draws(generator, len(data.output_token_ids), self.input_batch.vocab_size, self.kv_cache.data.dtype)
        return generator

    def reset(self) -> None:
        """Forget every request and row, as after a step that failed. KV memory stays as it is."""
        self.requests.clear()
        self._steady_rows = None
        observer = self.observer
        self.input_batch = self._make_batch()
        self.set_observer(observer)

    def prepare_inputs(self, output: SchedulerOutput) -> ModelInputs:
        """Read the flat batch of this step's tokens out of the rows."""
        batch = self.input_batch
        num_reqs, num_tokens = batch.num_reqs, output.total_num_scheduled_tokens
        batch.block_table.commit(num_reqs)  # first of all: the copy can run while the rest is prepared

        req_ids = tuple(batch.req_ids)
        query_lens = self._query_lens(req_ids, output)
        query_start_loc = self._query_start_loc.np
        query_start_loc[0] = 0
        np.cumsum(query_lens, out=query_start_loc[1 : num_reqs + 1])
        query_start_loc[num_reqs + 1 :] = num_tokens  # non-decreasing to the end, so that padded rows are empty

        rows = np.repeat(np.arange(num_reqs), query_lens)  # the row of each token
        within = np.arange(num_tokens) - query_start_loc[rows]  # 0, 1, 2 ... in each row
        computed = batch.rows.num_computed_tokens[:num_reqs]
        positions = self._positions.np[:num_tokens]
        np.add(computed[rows], within, out=positions)
        self._input_ids.np[:num_tokens] = batch.token_ids[rows, positions]

        seq_lens = computed + query_lens
        discard = seq_lens < batch.rows.num_tokens_no_spec[:num_reqs]
        logits_indices = query_start_loc[1 : num_reqs + 1] - 1
        query_start_loc_used = query_start_loc[: num_reqs + 1].copy()

        input_ids_gpu = self._input_ids.copy_to_gpu(num_tokens)
        positions_gpu = self._positions.copy_to_gpu(num_tokens)
        self._query_start_loc.copy_to_gpu()
        for table in batch.block_table:
            table.compute_slot_mapping(
                num_reqs, self._query_start_loc, self._positions, backend=self.slot_mapping_backend
            )
        table = batch.block_table[0]
        inputs = ModelInputs(
            req_ids,
            input_ids_gpu,
            positions_gpu,
            query_start_loc_used,
            seq_lens,
            logits_indices,
            discard,
            table.device_tensor(num_reqs),
            table.slot_mapping.gpu[:num_tokens],
            batch.sampling_metadata,
        )
        if self.observer is not None:
            self.observer(inputs.to_event())
        return inputs

    @staticmethod
    def _query_lens(req_ids: Sequence[str], output: SchedulerOutput) -> npt.NDArray[np.int32]:
        """Return each row's number of tokens in this step, ``[num_reqs]``."""
        if output.total_num_scheduled_tokens == len(req_ids):
            return np.ones(len(req_ids), dtype=np.int32)
        scheduled = output.num_scheduled_tokens
        return np.array([scheduled[req_id] for req_id in req_ids], dtype=np.int32)

    # --- beat 3: execute --------------------------------------------------------------------------------

    def execute(self, inputs: ModelInputs | None) -> dict[str, tuple[int, ...]]:
        """Run the model once over all tokens and sample.

        Returns
        -------
        dict of str to tuple of int
            The new tokens of each request, in batch order: one, or none for a partial prefill.
        """
        if inputs is None:
            return {}
        with torch.inference_mode(), self._threads():
            logits = self._forward(inputs)
            sampled = self._sample(inputs, logits)
        return self.take_in(inputs, sampled)

    def _forward(self, inputs: ModelInputs) -> torch.Tensor:
        started = time.perf_counter()
        metadata = AttentionMetadata.build(
            self.kv_cache,
            inputs.query_start_loc,
            inputs.seq_lens,
            inputs.positions,
            inputs.block_table,
            inputs.slot_mapping,
        )
        attention = PagedAttention(self.kv_cache, metadata)
        last = torch.from_numpy(inputs.logits_indices).to(self.device)
        hidden = self.model(inputs.input_ids, inputs.positions, attention)  # [num_tokens, hidden_size]
        logits: torch.Tensor = self.model.compute_logits(hidden[last])  # [num_reqs, vocab_size]
        if self.observer is not None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds = time.perf_counter() - started
            self.observer(ForwardFinished(len(inputs.input_ids), len(inputs.req_ids), seconds))
        return logits

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """Use one CPU thread for a small model: its work is so short that waiting for a second one costs more."""
        before = torch.get_num_threads()
        if self.device.type != "cpu" or not self._is_small or before == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _sample(self, inputs: ModelInputs, logits: torch.Tensor) -> list[int]:
        sampled: list[int] = sample(logits, inputs.sampling, inputs.discard).tolist()
        if self.observer is not None:
            for row, (req_id, token_id) in enumerate(zip(inputs.req_ids, sampled, strict=True)):
                self.observer(TokenSampled(row, req_id, token_id, bool(inputs.discard[row])))
        return sampled

    def take_in(self, inputs: ModelInputs, sampled: list[int]) -> dict[str, tuple[int, ...]]:
        """Write sampled tokens into their rows: `bookkeep`, or the same for all rows at once where none is special."""
        if self.observer is not None or inputs.discard.any():
            return self.bookkeep(inputs, sampled)
        self.input_batch.append_token_to_each(sampled)
        return dict(zip(inputs.req_ids, zip(sampled, strict=True), strict=True))

    def bookkeep(self, inputs: ModelInputs, sampled: list[int]) -> dict[str, tuple[int, ...]]:
        """Write the sampled tokens into their rows; drop those of partial prefills.

        Parameters
        ----------
        inputs : ModelInputs
        sampled : list of int, one per row

        Returns
        -------
        dict of str to tuple of int
            As `execute`.
        """
        tokens: dict[str, tuple[int, ...]] = {}
        for row, (req_id, token_id) in enumerate(zip(inputs.req_ids, sampled, strict=True)):
            if inputs.discard[row]:
                tokens[req_id] = ()
            else:
                self.input_batch.append_token(row, token_id)
                tokens[req_id] = (token_id,)
        return tokens

    def set_observer(self, observer: Observer | None) -> None:
        """Tell the runner, the batch and its block tables whom to call."""
        self.observer = observer
        self.input_batch.observer = observer
        for table in self.input_batch.block_table:
            table.observer = observer

    def check_integrity(self, held_block_ids: Mapping[str, BlockIds]) -> None:
        """Prove that the batch is whole, and its block tables say what the scheduler's side holds.

        Raises
        ------
        IntegrityError
            If not; the message names the request.
        """
        self.input_batch.check_integrity(held_block_ids)
