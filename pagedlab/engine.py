"""The engine: requests in, text out, one step at a time.

>>> engine = LLMEngine("quill", scheduler_config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4))
>>> engine.add_request("A", "To be, or not", SamplingParams(max_tokens=8, temperature=0))
>>> while engine.has_unfinished_requests():
...     outputs = engine.step()
>>> outputs[0].finished, len(outputs[0].output_token_ids)
(True, 8)

Each step is four beats, each a value in and a value out: the scheduler decides, the runner prepares tensors, the
model runs over them, the scheduler takes the tokens in. `LLMEngine.step` is all of it.

vLLM counterpart: ``vllm/v1/engine/llm_engine.py`` (``LLMEngine``), ``core.py`` (``EngineCore.step``) and
``output_processor.py`` at 0.25.1. What differs: one process, no queues between the parts; a request that could never
be served is refused when it is added, where 0.25.1 lets it wait for ever.
"""

from __future__ import annotations

import contextlib
import operator
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from pagedlab.batch.context_parallel import NO_CONTEXT_PARALLEL, ContextParallel
from pagedlab.config import CacheConfig, SchedulerConfig, require_bool, require_int
from pagedlab.errors import ConfigError, EngineBusyError, IntegrityError, PagedlabError, RequestError
from pagedlab.events import BeatStarted, Observer, RequestAdded, StepFinished, StepStarted
from pagedlab.kvcache import FullAttentionSpec, KVCacheManager, MemoryUsage
from pagedlab.model.decoder import Decoder
from pagedlab.model.loading import LoadedModel, load_model
from pagedlab.model.tokenizer import ByteTokenizer, IncrementalDetokenizer
from pagedlab.outputs import RequestOutput, Stream
from pagedlab.request import Request, SamplingParams
from pagedlab.runner import GPUModelRunner
from pagedlab.runner.cuda_graphs import capture_sizes
from pagedlab.runner.describing import describe_runner
from pagedlab.runner.ranks_attention import check_ranks
from pagedlab.scheduling import Scheduler, StepResult
from pagedlab.scheduling.output import TokenLogprobs


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine was built with, None filled in.

    ``model`` is a name for people; ``num_blocks`` counts the null block.
    """

    model: str
    max_model_len: int
    num_blocks: int
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: str
    dtype: str


def _require_as_it_is(model: Decoder, device: str, dtype: str | torch.dtype | None) -> None:
    """Raise `ConfigError` if a model in memory is asked to be elsewhere or otherwise than it is."""
    parameter = next(model.parameters())
    for name, asked, is_now in (
        ("device", device, ("auto", parameter.device.type, str(parameter.device))),
        ("dtype", str(dtype).removeprefix("torch."), ("None", str(parameter.dtype).removeprefix("torch."))),
    ):
        if asked not in is_now:
            raise ConfigError(
                f"{name} is {asked!r}, and the model is in memory with {name} {is_now[1]!r}: leave it out, or move the "
                "model itself (model.to(...)) before"
            )


def _require_memory(num_blocks: int, bytes_per_block: int, scheduler: SchedulerConfig, max_model_len: int) -> None:
    """Raise `ConfigError` if this machine has not the memory that the settings ask for; nothing has been taken then."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return  # Windows: the allocation itself will tell
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kv_bytes = num_blocks * (bytes_per_block + 200)  # a block is an object of Python, too
    batch_bytes = scheduler.max_num_seqs * max_model_len * 8 + scheduler.max_num_batched_tokens * 40
    for what, wanted, names in (
        ("KV memory", kv_bytes, "num_blocks or block_size"),
        ("the batch", batch_bytes, "max_num_seqs, max_num_batched_tokens or max_model_len"),
    ):
        if wanted > there:
            raise ConfigError(
                f"{what} would take {wanted / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.0f}: lower {names}"
            )


class LLMEngine:
    """Serves many requests at once with one model. Not for several threads at once.

    Parameters
    ----------
    model : str, path, LoadedModel or Decoder
        The name of a shipped model, a model folder, what `load_model` returned (several engines may share it), or a
        model in memory.
    scheduler_config : SchedulerConfig, optional
    cache_config : CacheConfig, optional
    max_model_len : int, optional
        The most tokens of one request, prompt and output; at most what the model was trained for (the default).
    device : str
        ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
    dtype : str or torch.dtype, optional
        What to compute in; None leaves it to the model. ``float64`` on a CPU makes results exact enough to compare.
    tokenizer : ByteTokenizer, optional
        For a model in memory that has one; named models bring theirs. Without it prompts are token ids.
    scheduler_cls : type of Scheduler
        `Scheduler`, or `StaticBatchScheduler` for the baseline (vLLM: ``SchedulerConfig.scheduler_cls``).
    slot_mapping_backend : {"numpy", "triton"}, optional
        None: Triton on a GPU, NumPy elsewhere. ``"triton"`` without a GPU runs in the interpreter.
    attention_backend : {"torch", "triton"}, optional
        None: Triton on a GPU, torch elsewhere and in float64. ``"triton"`` without a GPU runs in the interpreter.
    enforce_eager : bool
        Never replay CUDA graphs. They are used on a GPU with Triton attention, for batches of decodes.
    context_parallel : ContextParallel
        This process's part of each request's tokens, where several processes share them. Each runs an engine that is
        given the same requests in the same order; a block then holds ``block_size`` tokens on *each* rank.
    process_group : torch.distributed.ProcessGroup, optional
        The processes, in the order of their ranks; needed if there are several.

    Raises
    ------
    ConfigError
        If the settings cannot work together.
    ModelError
        If the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Decoder | LoadedModel = "quill",
        *,
        scheduler_config: SchedulerConfig | None = None,
        cache_config: CacheConfig | None = None,
        max_model_len: int | None = None,
        device: str = "auto",
        dtype: str | torch.dtype | None = None,
        tokenizer: ByteTokenizer | None = None,
        scheduler_cls: type[Scheduler] = Scheduler,
        slot_mapping_backend: str | None = None,
        attention_backend: str | None = None,
        enforce_eager: bool = False,
        context_parallel: ContextParallel = NO_CONTEXT_PARALLEL,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        if context_parallel.world_size > 1:
            check_ranks(context_parallel, process_group)
        scheduler_config = SchedulerConfig() if scheduler_config is None else scheduler_config
        cache_config = CacheConfig() if cache_config is None else cache_config
        for name, value, kind in (
            ("scheduler_config", scheduler_config, SchedulerConfig),
            ("cache_config", cache_config, CacheConfig),
            ("device", device, str),
            ("model", model, (str, os.PathLike, Decoder, LoadedModel)),
        ):
            if not isinstance(value, kind):
                wanted = "a name, a folder or a Decoder" if isinstance(kind, tuple) else f"a {kind.__name__}"
                raise ConfigError(f"{name} is {value!r}: give {wanted}")
        if not (isinstance(scheduler_cls, type) and issubclass(scheduler_cls, Scheduler)):
            raise ConfigError(f"scheduler_cls is {scheduler_cls!r}: give Scheduler, StaticBatchScheduler or a subclass")
        if isinstance(model, Decoder):
            _require_as_it_is(model, device, dtype)
            name, self.model, self.tokenizer = type(model).__name__, model, tokenizer
        elif isinstance(model, LoadedModel):
            _require_as_it_is(model.model, device, dtype)
            name, self.model, self.tokenizer = model.name, model.model, tokenizer or model.tokenizer
        else:
            loaded = load_model(model, device=device, dtype=dtype)
            name, self.model, self.tokenizer = loaded.name, loaded.model, tokenizer or loaded.tokenizer
        if self.tokenizer is not None and self.tokenizer.vocab_size != self.model.config.vocab_size:
            raise ConfigError(
                f"the tokenizer has {self.tokenizer.vocab_size} tokens and the model {self.model.config.vocab_size}: "
                "they do not belong together"
            )
        require_bool("enforce_eager", enforce_eager)
        longest = self.model.config.max_position_embeddings
        if max_model_len is None:
            max_model_len = longest
        require_int("max_model_len", max_model_len, 2, longest)
        scheduler_config.check_model_len(max_model_len)

        parameter = next(self.model.parameters())
        bytes_per_token = self.model.config.num_hidden_layers * 2 * self.model.config.kv_size * parameter.itemsize
        num_blocks = cache_config.resolve_num_blocks(
            max_num_seqs=scheduler_config.max_num_seqs, max_model_len=max_model_len, bytes_per_token=bytes_per_token
        )
        if not parameter.is_cuda:
            _require_memory(num_blocks, cache_config.block_size * bytes_per_token, scheduler_config, max_model_len)
        self.config = EngineConfig(
            name,
            max_model_len,
            num_blocks,
            cache_config,
            scheduler_config,
            str(parameter.device),
            str(parameter.dtype).removeprefix("torch."),
        )
        # A rank keeps `block_size` tokens of a block; the manager counts what all of them keep.
        self._specs = (FullAttentionSpec(cache_config.block_size),)
        self.kv_cache_manager = KVCacheManager(
            [FullAttentionSpec(cache_config.block_size * context_parallel.world_size)],
            num_blocks,
            max_model_len,
            enable_caching=cache_config.enable_prefix_caching,
            max_num_batched_tokens=scheduler_config.max_num_batched_tokens,
        )
        self.scheduler = scheduler_cls(scheduler_config, self.kv_cache_manager, max_model_len)
        self.runner = GPUModelRunner(
            self.model,
            max_num_reqs=scheduler_config.max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=scheduler_config.max_num_batched_tokens,
            num_blocks=num_blocks,
            specs=self._specs,
            slot_mapping_backend=slot_mapping_backend,
            attention_backend=attention_backend,
            context_parallel=context_parallel,
            process_group=process_group,
            capture_sizes=()
            if enforce_eager or not parameter.is_cuda
            else capture_sizes(scheduler_config.max_num_seqs),
        )
        self.num_steps = 0
        self._streams: dict[str, Stream] = {}
        self._leaving: dict[str, Stream] = {}  # of the last step
        self._delivered_step = 0
        self._num_generated_ids = 0
        self._busy = False
        self._observer: Observer | None = None

    # --- requests ---------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        lora_id: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Queue a request. It runs when a step finds a seat, budget and blocks for it.

        Parameters
        ----------
        request_id : str
            Unique among live requests; free again when the request has ended.
        prompt : str or sequence of int
            Text, or token ids.
        sampling_params : SamplingParams, optional
        priority : int
            Smaller runs first, if the scheduler's policy is ``"priority"``; else of no effect.
        lora_id : int
            The request's adapter, 0 for none. The model has no adapters and ignores it; it is kept with the request's
            row, and requests of different adapters share no cached blocks.
        cache_salt : str, optional
            Only requests with the same salt share cached blocks.

        Raises
        ------
        RequestError
            If the prompt is empty or too long; if it or ``sampling_params`` hold token ids outside the vocabulary, or
            settings that leave no token; or if the block pool could not hold the request even if it were alone.
        DuplicateRequestError
            If the id is in use. In every case the engine is as it was and goes on.
        EngineBusyError
            If the engine is in the middle of a step.
        """
        self._require_idle()
        params = SamplingParams() if sampling_params is None else sampling_params
        prompt_token_ids = self._check_prompt(request_id, prompt, params)
        text = prompt if isinstance(prompt, str) else None
        self._queue(request_id, text, prompt_token_ids, params, priority, lora_id, cache_salt)

    def _queue(
        self,
        request_id: str,
        text: str | None,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        priority: int = 0,
        lora_id: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        request = Request(
            request_id,
            prompt_token_ids,
            params,
            time.monotonic(),
            self.model.config.eos_token_id,
            priority=priority,
            lora_id=lora_id,
            cache_salt=cache_salt,
        )
        self.scheduler.add_request(request)
        detokenizer = None if self.tokenizer is None else IncrementalDetokenizer(self.tokenizer)
        self._streams[request_id] = Stream(request, text, prompt_token_ids, detokenizer)
        if self.observer is not None:
            prompt, max_tokens = tuple(request.prompt_token_ids), request.sampling_params.max_tokens
            self.observer(RequestAdded(request.request_id, prompt, max_tokens))

    def _check_prompt(self, request_id: str, prompt: str | Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        """Return the prompt's token ids, or raise what `add_request` says."""
        if not isinstance(request_id, str) or not request_id:
            raise RequestError(f"the request id is {request_id!r}: give a non-empty string")
        if not isinstance(params, SamplingParams):
            raise RequestError(f"request {request_id!r}: sampling_params is {params!r}: give a SamplingParams")
        try:
            params.check_vocabulary(self.model.config.vocab_size, self.model.config.eos_token_id)
        except ConfigError as error:
            raise RequestError(f"request {request_id!r}: {error}") from None
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError(f"request {request_id!r}: this engine has no tokenizer, so give token ids, not text")
            token_ids = tuple(self.tokenizer.encode(prompt))
        else:
            token_ids = self._check_token_ids(request_id, prompt)
        if not token_ids:
            raise RequestError(f"request {request_id!r} has an empty prompt: give at least one token")
        limit = self.config.max_model_len
        if len(token_ids) >= limit:
            raise RequestError(
                f"request {request_id!r} has a prompt of {len(token_ids)} tokens, and max_model_len is {limit}, prompt "
                f"and output together: shorten the prompt to {limit - 1} tokens or fewer, or raise max_model_len"
            )
        if params.min_tokens > limit - len(token_ids):
            raise RequestError(
                f"request {request_id!r} asks for at least {params.min_tokens} tokens, and after its prompt of "
                f"{len(token_ids)} there is room for {limit - len(token_ids)} (max_model_len is {limit}): "
                "lower min_tokens"
            )
        # The last token that is sampled is never computed, so it needs no slot.
        most = min(len(token_ids) + params.max_tokens, limit) - 1
        if not self.kv_cache_manager.fits_pool(most):
            block_size = self.kv_cache_manager.specs[0].block_size
            pool = self.kv_cache_manager.block_pool.num_usable_blocks * block_size
            raise RequestError(
                f"request {request_id!r} may need KV memory for {most} tokens ({len(token_ids)} of the prompt and up "
                f"to {params.max_tokens} of output), and the whole pool holds {pool}: shorten the prompt, lower "
                f"max_tokens, or raise num_blocks to at least {-(-most // block_size) + 1}"
            )
        return token_ids

    def _check_token_ids(self, request_id: str, prompt: Any) -> tuple[int, ...]:
        vocab_size = self.model.config.vocab_size
        if isinstance(prompt, (bytes, Mapping, Set)) or not isinstance(prompt, Iterable):
            raise RequestError(f"request {request_id!r}: the prompt is {prompt!r}: give text or token ids")
        token_ids = []
        for token in prompt:
            try:
                token_id = -1 if isinstance(token, bool) else operator.index(token)
            except TypeError:
                token_id = -1
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"request {request_id!r}: {token!r} in the prompt is not a token id: "
                    f"give whole numbers from 0 to {vocab_size - 1}, or text"
                )
            token_ids.append(token_id)
        return tuple(token_ids)

    def abort_request(self, request_ids: str | Iterable[str]) -> list[str]:
        """End requests at once; what they hold is free again. Ids that are not live are ignored.

        Returns
        -------
        list of str
            The ids that were live.
        """
        self._require_idle()
        ids = [request_ids] if isinstance(request_ids, str) or not isinstance(request_ids, Iterable) else [*request_ids]
        if not all(isinstance(request_id, str) for request_id in ids):
            raise RequestError(f"the ids to abort are {request_ids!r}: give a request id, or several")
        aborted = self.scheduler.abort_requests(ids)
        for request_id in aborted:
            del self._streams[request_id]
        return aborted

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    # --- the step ---------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Do one step and return what it brought, in scheduling order.

        Returns
        -------
        list of RequestOutput
            One for each request that got a token. Partial prefills bring none.

        Raises
        ------
        EngineBusyError
            If a step is under way already.

        Notes
        -----
        If anything fails in a step, an interrupt included, the step is taken back: the requests that were running start
        anew from the tokens they have, and the error goes on to the caller.
        """
        with self._all_or_nothing():
            self._begin_step()

            self._begin_beat("schedule")  # who gets how many tokens; blocks are allocated here
            scheduled = self.scheduler.schedule()

            self._begin_beat("prepare")  # rows change, tensors are built, block tables sent, slots computed
            inputs = self.runner.prepare(scheduled)

            self._begin_beat("execute")  # one forward pass over all tokens on paged memory, then sampling
            output = self.runner.execute(inputs)

            self._begin_beat("update")  # tokens are taken in; who is done leaves and frees its blocks
            result = self.scheduler.update_from_output(scheduled, output.sampled_token_ids)

            self._end_step()
            return self._to_outputs(result, output.logprobs)

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Keep others out while a step runs, and take it back if it fails."""
        self._require_idle()
        self._busy = True
        try:
            yield
        except BaseException:
            self._start_anew()
            raise
        finally:
            self._busy = False

    def _start_anew(self) -> None:
        """Let every live request begin again from the tokens it has been given; nothing else of a failed step stays."""
        if self._delivered_step < self.num_steps:
            self._streams |= self._leaving
        place = {r.request_id: index for index, r in enumerate([*self.scheduler.running, *self.scheduler.waiting])}
        streams = sorted(self._streams.values(), key=lambda s: place.get(s.request.request_id, len(place)))
        for stream in streams:
            stream.start_anew(self._delivered_step)
        self._leaving, self._delivered_step = {}, self.num_steps
        self.kv_cache_manager.reset()
        self.runner.reset()
        self.scheduler.restart([stream.request for stream in streams])

    def _require_idle(self) -> None:
        if self._busy:
            raise EngineBusyError(
                "the engine is in the middle of a step: an observer may only watch, and one thread at a time may call"
            )

    def _begin_step(self) -> None:
        if self.observer is not None:
            self.observer(StepStarted(self.num_steps))

    def _begin_beat(self, beat: str) -> None:
        if self.observer is not None:
            self.observer(BeatStarted(beat))

    def _end_step(self) -> None:
        if self.observer is not None:
            running = tuple(request.request_id for request in self.scheduler.running)
            waiting = tuple(request.request_id for request in self.scheduler.waiting)
            self.observer(StepFinished(self.num_steps, running, waiting, self.kv_cache_manager.num_free_blocks))
        self.num_steps += 1

    def _to_outputs(self, result: StepResult, logprobs: Mapping[str, tuple[TokenLogprobs, ...]]) -> list[RequestOutput]:
        outputs = []
        for request_id, new_token_ids in result.new_token_ids.items():
            finish_reason = result.finish_reasons.get(request_id)
            accepted = logprobs.get(request_id, ())[: len(new_token_ids)]  # what was sampled behind the end is dropped
            output = self._streams[request_id].take(self.num_steps, new_token_ids, accepted, finish_reason)
            outputs.append(output)
        self._leaving = {request_id: self._streams[request_id] for request_id in result.finish_reasons}
        if self._leaving:
            self._streams = {name: stream for name, stream in self._streams.items() if name not in self._leaving}
        self._delivered_step = self.num_steps  # from here on the step has happened
        return outputs

    # --- many at once -----------------------------------------------------------------------------------

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Run prompts to their ends, together, and return the outputs in the order of the prompts.

        Requests that are in the engine already are served along; their outputs of these steps are not returned.

        Parameters
        ----------
        prompts : str, or sequence of str or of token ids
        sampling_params : SamplingParams, or one for each prompt

        Raises
        ------
        RequestError
            As `add_request`, before anything has run: then none of the prompts was added. An interrupt ends all of
            them.
        """
        self._require_idle()
        if not isinstance(prompts, (str, Iterable)):
            raise RequestError(f"the prompts are {prompts!r}: give a text, or a list of texts or of lists of token ids")
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or SamplingParams()] * len(prompts)
        elif isinstance(sampling_params, Iterable):
            params = list(sampling_params)
        else:
            raise RequestError(f"sampling_params is {sampling_params!r}: give a SamplingParams, or one for each prompt")
        if len(params) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts and {len(params)} SamplingParams were given: give one, or one each"
            )
        request_ids = [self._next_request_id() for _ in prompts]
        checked = [self._check_prompt(*one) for one in zip(request_ids, prompts, params, strict=True)]
        done: dict[str, RequestOutput] = {}
        pending = set(request_ids)
        try:
            for request_id, prompt, token_ids, param in zip(request_ids, prompts, checked, params, strict=True):
                self._queue(request_id, prompt if isinstance(prompt, str) else None, token_ids, param)
            while pending:
                for output in self.step():
                    if output.finished and output.request_id in pending:
                        done[output.request_id] = output
                        pending.remove(output.request_id)
        finally:
            self.abort_request(pending)
        return [done[request_id] for request_id in request_ids]

    def _next_request_id(self) -> str:
        while True:
            request_id = str(self._num_generated_ids)
            self._num_generated_ids += 1
            if request_id not in self._streams:
                return request_id

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PagedlabError("an engine cannot be copied or pickled: its memory is its own; build another one")

    # --- looking inside ---------------------------------------------------------------------------------

    @property
    def observer(self) -> Observer | None:
        """Called with every event, None for nobody. See `pagedlab.trace.record`."""
        return self._observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._observer = observer
        self.scheduler.observer = observer
        self.kv_cache_manager.observer = observer
        self.runner.set_observer(observer)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings that a trace keeps."""
        config = self.config
        return {
            "model": config.model,
            "max_model_len": config.max_model_len,
            "num_blocks": config.num_blocks,
            "block_size": config.cache.block_size,
            "scheduler": type(self.scheduler).__name__,
            "policy": config.scheduler.policy,
            "max_num_batched_tokens": config.scheduler.max_num_batched_tokens,
            "max_num_seqs": config.scheduler.max_num_seqs,
            "enable_prefix_caching": config.cache.enable_prefix_caching,
            "enable_chunked_prefill": config.scheduler.enable_chunked_prefill,
            "device": config.device,
            **describe_runner(self.runner, self._specs),
        }

    def token_text(self, token_id: int) -> str | None:
        """Return a short label for a token, None without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.token_text(token_id)

    def memory_usage(self) -> MemoryUsage:
        """Return what every KV block and slot is used for right now."""
        return self.kv_cache_manager.memory_usage(self.scheduler.running)

    def check_integrity(self) -> None:
        """Prove that blocks, queues, rows and block tables agree. Call it between steps.

        Raises
        ------
        IntegrityError
            If they do not: a defect of pagedlab.
        """
        self.scheduler.check_integrity()
        self.runner.check_integrity(self.kv_cache_manager.held_block_ids)
        if self._streams.keys() != self.scheduler.requests.keys():
            raise IntegrityError(
                f"outputs are kept for {list(self._streams)}, requests are {list(self.scheduler.requests)}"
            )
