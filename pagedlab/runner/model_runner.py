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
``._build_attention_metadata``, ``.execute_model``) at 0.25.1. What differs: drafts in the forward
pass and async scheduling are not here; a step in which everybody decodes takes a short way through the same work.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from pagedlab.batch import CachedRequestState, ContextParallel, Fence, InputBatch, builtin_logits_processors
from pagedlab.batch.context_parallel import NO_CONTEXT_PARALLEL
from pagedlab.config import require_int
from pagedlab.errors import ConfigError
from pagedlab.events import ForwardFinished, Observer, TokenSampled
from pagedlab.kernels import backend
from pagedlab.kvcache import EncoderOnlySpec, KVCacheSpec
from pagedlab.kvcache.manager import BlockIds
from pagedlab.model.decoder import Decoder
from pagedlab.runner.attention import KVCache
from pagedlab.runner.backends import choose_slot_mapping_backend, make_attention_backend, triton_takes
from pagedlab.runner.cuda_graphs import DecodeGraphs
from pagedlab.runner.inputs import InputBuffers, ModelInputs
from pagedlab.runner.metadata import CommonAttentionMetadata, build_group_metadata, pad_to_capture_size, table_spec
from pagedlab.runner.reorder import regions, swaps_to_sort
from pagedlab.runner.sampler import sample, skip_draws, token_logprobs
from pagedlab.runner.steady import SteadyRows
from pagedlab.runner.threads import ONE_THREAD_PARAMETERS, one_thread
from pagedlab.scheduling.output import (
    ModelRunnerOutput,
    NewRequestData,
    OneTokenEach,
    SchedulerOutput,
    TokenLogprobs,
)


class GPUModelRunner:
    """Runs the model for the scheduler, on a GPU or a CPU.

    Parameters
    ----------
    model : Decoder
        On the device it is to run on.
    max_num_reqs, max_model_len, max_num_batched_tokens, num_blocks : int
        Sizes; all memory is taken here, once.
    specs : sequence of KVCacheSpec
        One per KV cache group. The model's layers are in the first, which must have slots.
    decode_threshold : int or None
        The largest query length that counts as a decode when rows are put in order, decodes first; None: no order.
    slot_mapping_backend : {"numpy", "triton"} or None
        None: Triton on a GPU, NumPy elsewhere, since the interpreter is slow.
    commit_mode : {"changed", "full"}
        What of the block tables is sent to the device in each step; they end up the same.
    attention_backend : {"torch", "triton"} or None
        None: Triton on a GPU where its kernels take the model's dtype and head size, torch elsewhere.
    capture_sizes : sequence of int
        Token counts that batches are padded to; none: no padding. On a GPU with Triton attention, batches of decodes
        are then replayed as CUDA graphs.
    context_parallel : ContextParallel, optional
        This rank's part of the tokens in full-attention groups; other groups are kept whole on every rank.
    process_group : torch.distributed.ProcessGroup, optional
        The ranks. Without it a rank of several prepares its tables and slots, and `forward` refuses to run.
    poison : bool
        Overwrite everything stale before each step, to prove that nobody looks at it.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        num_blocks: int,
        specs: Sequence[KVCacheSpec],
        decode_threshold: int | None = None,
        slot_mapping_backend: str | None = None,
        commit_mode: str = "changed",
        attention_backend: str | None = None,
        capture_sizes: Sequence[int] = (),
        context_parallel: ContextParallel = NO_CONTEXT_PARALLEL,
        process_group: torch.distributed.ProcessGroup | None = None,
        poison: bool = False,
    ) -> None:
        parameter = next(model.parameters())
        device, config = parameter.device, model.config
        self.model = model
        self.device = device
        self.observer: Observer | None = None
        self.decode_threshold = decode_threshold
        self.slot_mapping_backend = choose_slot_mapping_backend(slot_mapping_backend, device.type == "cuda")
        for size in capture_sizes:
            require_int("a capture size", size, 1, max_num_batched_tokens)
        self.capture_sizes = tuple(sorted(capture_sizes))
        self.requests: dict[str, CachedRequestState] = {}
        self._specs = tuple(specs)
        self._make_batch: Callable[[], InputBatch] = lambda: InputBatch(
            max_num_reqs,
            max_model_len,
            max_num_batched_tokens,
            config.vocab_size,
            [table_spec(spec, context_parallel) for spec in specs],
            device,
            logits_processors=builtin_logits_processors(device, config.eos_token_id),
            commit_mode=commit_mode,
        )
        self.input_batch = self._make_batch()
        self.kv_cache = KVCache(
            config.num_hidden_layers,
            num_blocks,
            self.input_batch.block_table[0].block_size,
            config.num_key_value_heads,
            config.head_dim,
            parameter.dtype,
            device,
        )
        on_gpu = device.type == "cuda" and backend().name == "cuda"
        if attention_backend is None:
            attention_backend = "triton" if on_gpu and triton_takes(parameter.dtype, config.head_dim) else "torch"
        self.attention_backend = make_attention_backend(
            attention_backend, self.kv_cache, context_parallel, process_group
        )
        self._is_alone = context_parallel.world_size > 1 and process_group is None
        self._builders = [
            self.attention_backend.make_builder(table.block_size) for table in self.input_batch.block_table
        ]
        self._graphs = self._new_graphs()
        self._is_small = sum(p.numel() for p in model.parameters()) < ONE_THREAD_PARAMETERS
        self._steady_rows: SteadyRows | None = None
        self._poison = poison
        self._sent = Fence(device)  # what the device has been sent: host arrays may be written again when it is there
        self._buffers = InputBuffers(max_num_reqs, max_num_batched_tokens, device)
        self._table_views: tuple[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] | None = None

    @property
    def captured_graphs(self) -> tuple[int, ...]:
        """The batch sizes for which there is a CUDA graph by now."""
        return () if self._graphs is None else self._graphs.captured

    def _new_graphs(self) -> DecodeGraphs | None:
        if self.device.type != "cuda" or not self.attention_backend.captures_graphs or not self.capture_sizes:
            return None
        return DecodeGraphs(self._forward_decodes, self.capture_sizes)

    # --- beat 2: prepare --------------------------------------------------------------------------------

    def prepare(self, output: SchedulerOutput) -> ModelInputs | None:
        """Bring the batch up to date and build the inputs of the forward pass; None if nothing is scheduled."""
        self._sent.wait()
        self.update_states(output)
        if self._poison:
            self.input_batch.poison()
            self._buffers.poison()
        inputs = self.prepare_inputs(output) if output.scheduled else None
        self._sent.record()
        return inputs

    def update_states(self, output: SchedulerOutput) -> None:
        """Change the persistent batch where this step differs from the last, in vLLM's order."""
        if self._steady_rows is not None and self._steady_rows.goes_on(output):
            self._update_steady_rows(self._steady_rows, output)
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
        columns = (cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens)
        for req_id, num_computed_tokens, num_output_tokens in zip(*columns, strict=True):
            state = self.requests[req_id]
            state.num_computed_tokens = num_computed_tokens
            if num_output_tokens < len(state.output_token_ids):
                batch.truncate_outputs(state, num_output_tokens)
            blocks = new_block_ids.get(req_id)
            if req_id in cached.resumed_req_ids:
                state.replace_block_ids(blocks or state.block_ids)
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
            self._steady_rows = SteadyRows.of(cached, batch.req_id_to_index)

    def _update_steady_rows(self, steady: SteadyRows, output: SchedulerOutput) -> None:
        """Do `update_states` for a batch in which nobody comes, goes or moves: counters and new blocks are all.

        The states' own ``num_computed_tokens`` are left behind: they are read when a request is added to the batch, and
        written before that.
        """
        cached, batch = output.scheduled_cached_reqs, self.input_batch
        batch.rows.num_computed_tokens[: batch.num_reqs] = steady.num_computed_tokens(cached)
        for req_id, blocks in cached.new_block_ids:
            self.requests[req_id].extend_block_ids(blocks)
        batch.append_blocks_to_each(cached.new_block_ids)
        if self._reorder(output):
            self._steady_rows = SteadyRows.of(cached, batch.req_id_to_index)
        batch.refresh_metadata()

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
            lora_id=data.lora_id,
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
        self._steady_rows = self._table_views = None
        observer = self.observer
        self.input_batch = self._make_batch()
        self._graphs = self._new_graphs()  # the old ones read the old batch's block table
        self.set_observer(observer)

    def prepare_inputs(self, output: SchedulerOutput) -> ModelInputs:
        """Read the flat batch of this step's tokens out of the rows, and bring it to the device."""
        batch, buffers = self.input_batch, self._buffers
        num_reqs, num_tokens = batch.num_reqs, output.total_num_scheduled_tokens
        batch.block_table.commit(num_reqs)  # first of all: the copy can run while the rest is prepared

        req_ids = tuple(batch.req_ids)
        query_lens = self._query_lens(req_ids, output)
        buffers.fill(batch, query_lens, num_tokens)
        max_query_len = 1 if num_tokens == num_reqs else int(query_lens.max())
        num_reqs_padded, num_tokens_padded = self._padded(num_reqs, num_tokens, max_query_len)
        buffers.send(num_tokens, num_tokens_padded)
        batch.block_table.compute_slot_mapping(
            num_reqs, buffers.query_start_loc, buffers.positions, backend=self.slot_mapping_backend
        )

        query_start_loc = buffers.query_start_loc.np[: num_reqs_padded + 1].copy()
        seq_lens = buffers.seq_lens.np[:num_reqs_padded].copy()
        on_device = buffers.views(num_reqs_padded, num_tokens_padded)
        _, _, input_ids, positions = (
            buffers.views(num_reqs, num_tokens) if num_tokens_padded > num_tokens else on_device
        )
        inputs = ModelInputs(
            req_ids,
            input_ids,
            positions,
            query_start_loc[: num_reqs + 1],
            seq_lens[:num_reqs],
            query_start_loc[1 : num_reqs + 1] - 1,
            seq_lens[:num_reqs] < batch.rows.num_tokens_no_spec[:num_reqs],
            batch.sampling_metadata,
            self._attention_inputs(num_reqs, num_tokens, query_start_loc, seq_lens, max_query_len, on_device),
        )
        if self.observer is not None:
            self.observer(inputs.to_event())
        return inputs

    def _padded(self, num_reqs: int, num_tokens: int, max_query_len: int) -> tuple[int, int]:
        """Return the rows and tokens of the forward pass; in a batch of decodes a padded token has a row of its own."""
        num_tokens_padded = pad_to_capture_size(num_tokens, self.capture_sizes)
        if max_query_len == 1 and num_tokens_padded <= self.input_batch.max_num_reqs:
            return num_tokens_padded, num_tokens_padded
        return num_reqs, num_tokens_padded

    def _attention_inputs(
        self,
        num_reqs: int,
        num_tokens: int,
        query_start_loc: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        max_query_len: int,
        on_device: tuple[torch.Tensor, ...],
    ) -> tuple[CommonAttentionMetadata, ...]:
        """Return what attention is told, per group: the groups differ in block table and slots only."""
        query_start_loc_gpu, seq_lens_gpu, _, positions = on_device
        tables = self._tables_on_device(num_reqs, len(seq_lens), len(positions))
        first = CommonAttentionMetadata(
            query_start_loc_gpu,
            query_start_loc,
            seq_lens_gpu,
            seq_lens,
            num_reqs,
            num_tokens,
            max_query_len,
            positions,
            *tables[0],
        )
        return (first, *(first.for_group(*table) for table in tables[1:]))

    def _tables_on_device(
        self, num_reqs: int, num_reqs_padded: int, num_tokens: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each group's block table and slots; padded rows name the null block (vLLM: ``_get_block_table``)."""
        tables = self.input_batch.block_table
        if num_reqs_padded > num_reqs:
            for block_table in tables:
                block_table.pad_rows(num_reqs, num_reqs_padded)
        if self._table_views is None or self._table_views[0] != (num_reqs_padded, num_tokens):
            views = [(table.device_tensor(num_reqs_padded), table.slot_mapping.gpu[:num_tokens]) for table in tables]
            for group, spec in enumerate(self._specs):
                if isinstance(spec, EncoderOnlySpec):  # keeps nothing: kernels are given something to look at
                    table, slots = views[group]
                    views[group] = torch.zeros_like(table[:, :1]), torch.zeros_like(slots)
            self._table_views = ((num_reqs_padded, num_tokens), views)
        return self._table_views[1]

    @staticmethod
    def _query_lens(req_ids: Sequence[str], output: SchedulerOutput) -> npt.NDArray[np.int32]:
        """Return each row's number of tokens in this step, ``[num_reqs]``."""
        if output.total_num_scheduled_tokens == len(req_ids):
            return _ones(len(req_ids))
        scheduled = output.num_scheduled_tokens
        return np.array([scheduled[req_id] for req_id in req_ids], dtype=np.int32)

    # --- beat 3: execute --------------------------------------------------------------------------------

    def execute(self, inputs: ModelInputs | None) -> ModelRunnerOutput:
        """Run the model once over all tokens and sample.

        Returns
        -------
        ModelRunnerOutput
            The new tokens of each request, in batch order: one, or none for a partial prefill.
        """
        if inputs is None:
            return ModelRunnerOutput({})
        with torch.inference_mode(), one_thread(self.device.type == "cpu" and self._is_small):
            logits = self.forward(inputs)
            sampled, logprobs = self.sample(inputs, logits)
        return ModelRunnerOutput(self.take_in(inputs, sampled), logprobs)

    def forward(self, inputs: ModelInputs) -> torch.Tensor:
        """Run the model over all tokens, as a CUDA graph where there is one; return logits ``[num_reqs, vocab_size]``.

        Logits of a graph are valid until the next forward pass.
        """
        if self._is_alone:
            raise ConfigError(
                "a rank of several cannot run the model alone, since others have a part of the keys: give the runner "
                "a process_group"
            )
        started = time.perf_counter()
        if self._graphs is not None and inputs.is_all_decodes and self._graphs.has(inputs.num_reqs_padded):
            logits = self._graphs.replay(inputs.num_reqs_padded)[: len(inputs.req_ids)]
        else:
            logits = self._forward_eagerly(inputs)
        if self.observer is not None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds = time.perf_counter() - started
            self.observer(ForwardFinished(len(inputs.input_ids), len(inputs.req_ids), seconds))
        return logits

    def _forward_eagerly(self, inputs: ModelInputs) -> torch.Tensor:
        groups = zip(self._specs, self._builders, inputs.attention, self.input_batch.block_table, strict=True)
        metadata, *_ = build_group_metadata(
            [(spec, builder, common) for spec, builder, common, table in groups if table.spec.has_slots]
        )
        last = torch.from_numpy(inputs.logits_indices).to(self.device)
        hidden = self.model(inputs.input_ids, inputs.positions, self.attention_backend.attention(metadata))
        logits: torch.Tensor = self.model.compute_logits(hidden[last])
        return logits

    def _forward_decodes(self, num_reqs: int) -> torch.Tensor:
        """Return logits of a batch of decodes, padded, from what the persistent buffers hold: what a graph records."""
        input_ids, common = self._buffers.decodes(num_reqs, self.input_batch.block_table[0])
        attention = self.attention_backend.attention(self._builders[0].build(common))
        logits: torch.Tensor = self.model.compute_logits(self.model(input_ids, common.positions, attention))
        return logits

    def sample(
        self, inputs: ModelInputs, logits: torch.Tensor
    ) -> tuple[npt.NDArray[np.int64], dict[str, tuple[TokenLogprobs, ...]]]:
        """Return a token for each row, and for the requests that want to know, how likely it was."""
        token_ids = sample(logits, inputs.sampling, inputs.discard)
        by_row = token_logprobs(logits, token_ids, inputs.sampling, inputs.discard)
        logprobs: dict[str, tuple[TokenLogprobs, ...]]
        logprobs = {inputs.req_ids[row]: (record,) for row, record in by_row.items()}
        sampled: npt.NDArray[np.int64] = token_ids.cpu().numpy()
        if self.observer is not None:
            for row, (req_id, token_id) in enumerate(zip(inputs.req_ids, sampled.tolist(), strict=True)):
                self.observer(TokenSampled(row, req_id, token_id, bool(inputs.discard[row])))
        return sampled, logprobs

    def take_in(self, inputs: ModelInputs, sampled: npt.NDArray[np.integer]) -> Mapping[str, tuple[int, ...]]:
        """Write sampled tokens into their rows: `bookkeep`, or the same for all rows at once where none is special.

        ``sampled`` is ``[num_reqs]`` int.
        """
        if self.observer is not None or inputs.discard.any():
            return self.bookkeep(inputs, sampled.tolist())
        return OneTokenEach(inputs.req_ids, self.input_batch.append_token_to_each(sampled))

    def bookkeep(self, inputs: ModelInputs, sampled: list[int]) -> dict[str, tuple[int, ...]]:
        """Write the sampled tokens into their rows; drop those of partial prefills.

        Parameters
        ----------
        inputs : ModelInputs
        sampled : list of int, one per row

        Returns
        -------
        dict of str to tuple of int
            New tokens by request, in batch order.
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


@functools.lru_cache(maxsize=1)
def _ones(length: int) -> npt.NDArray[np.int32]:
    ones = np.ones(length, dtype=np.int32)
    ones.flags.writeable = False
    return ones
