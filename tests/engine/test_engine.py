"""The engine as its user meets it: outputs, streaming, aborts, sampling, and bad input."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pagedlab import CacheConfig, LLMEngine, SamplingParams, SchedulerConfig
from pagedlab.errors import (
    ConfigError,
    DuplicateRequestError,
    EngineBusyError,
    ModelError,
    PagedlabError,
    RequestError,
)
from pagedlab.events import BeatStarted, Event
from pagedlab.model.decoder import Decoder
from pagedlab.model.loading import load_model
from pagedlab.model.tokenizer import ByteTokenizer
from pagedlab.scheduling import Scheduler, StaticBatchScheduler

GREEDY = SamplingParams(max_tokens=4, temperature=0)


@pytest.fixture
def engine(tiny_model: Decoder) -> LLMEngine:
    return LLMEngine(
        tiny_model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=3),
        cache_config=CacheConfig(block_size=4, num_blocks=12),
        max_model_len=32,
    )


def run(engine: LLMEngine) -> dict[str, tuple[int, ...]]:
    tokens: dict[str, tuple[int, ...]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = output.output_token_ids
        engine.check_integrity()
    return tokens


# --- bad input: a named error, and the engine goes on ----------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda e: e.add_request("X", [], GREEDY), RequestError, "empty prompt"),
        (lambda e: e.add_request("X", [1] * 32, GREEDY), RequestError, "max_model_len is 32"),
        (lambda e: e.add_request("X", [1] * 500, GREEDY), RequestError, "shorten the prompt to 31"),
        (lambda e: e.add_request("A", [1], GREEDY), DuplicateRequestError, "in use"),
        (lambda e: e.add_request("", [1], GREEDY), RequestError, "non-empty string"),
        (lambda e: e.add_request(3, [1], GREEDY), RequestError, "non-empty string"),
        (lambda e: e.add_request("X", [64], GREEDY), RequestError, "0 to 63"),
        (lambda e: e.add_request("X", [-1], GREEDY), RequestError, "0 to 63"),
        (lambda e: e.add_request("X", [1.5], GREEDY), RequestError, "token id"),
        (lambda e: e.add_request("X", [np.float32(1.7)], GREEDY), RequestError, "token id"),
        (lambda e: e.add_request("X", torch.tensor([1.9, 2.0]), GREEDY), RequestError, "token id"),
        (lambda e: e.add_request("X", torch.zeros(2, 2, dtype=torch.long), GREEDY), RequestError, "token id"),
        (lambda e: e.add_request("X", [True, False], GREEDY), RequestError, "token id"),
        (lambda e: e.add_request("X", {1: 2}, GREEDY), RequestError, "give text or token ids"),
        (lambda e: e.add_request("X", [2**80], GREEDY), RequestError, "token id"),
        (lambda e: e.add_request("X", [1], SamplingParams(max_tokens=50, min_tokens=50)), RequestError, "room for 31"),
        (lambda e: e.add_request("X", [1], GREEDY, priority="high"), ConfigError, "priority"),
        (lambda e: e.add_request("X", [1], GREEDY, cache_salt=5), RequestError, "cache_salt"),
        (lambda e: e.generate(5), RequestError, "the prompts are 5"),
        (lambda e: e.generate([[1]], 5), RequestError, "sampling_params is 5"),
        (lambda e: e.abort_request(None), RequestError, "ids to abort"),
        (lambda e: e.abort_request([[1]]), RequestError, "ids to abort"),
        (lambda e: e.add_request("X", 7, GREEDY), RequestError, "give text or token ids"),
        (lambda e: e.add_request("X", "text", GREEDY), RequestError, "no tokenizer"),
        (lambda e: e.add_request("X", [1], {"max_tokens": 3}), RequestError, "give a SamplingParams"),
        (lambda e: e.generate([[1], []], GREEDY), RequestError, "empty prompt"),
        (lambda e: e.generate([[1], [2]], [GREEDY]), RequestError, "2 prompts and 1"),
    ],
)
def test_bad_requests_are_refused_and_the_engine_goes_on(
    engine: LLMEngine, call: Callable[[LLMEngine], object], error: type[Exception], words: str
) -> None:
    engine.add_request("A", [1, 2, 3], GREEDY)
    with pytest.raises(error, match=words):
        call(engine)
    engine.check_integrity()
    assert list(engine.scheduler.requests) == ["A"]
    assert len(run(engine)["A"]) == 4


def test_c11_a_request_larger_than_the_pool_is_refused_instead_of_waiting_for_ever(tiny_model: Decoder) -> None:
    engine = LLMEngine(tiny_model, cache_config=CacheConfig(block_size=4, num_blocks=4), max_model_len=32)
    with pytest.raises(RequestError, match="raise num_blocks to at least 7"):
        engine.add_request("A", [1] * 20, GREEDY)
    engine.add_request("B", [1] * 9, GREEDY)  # 12 tokens are computed: three blocks, exactly
    assert len(run(engine)["B"]) == 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SchedulerConfig(max_num_batched_tokens=0), "at least 1"),
        (lambda: SchedulerConfig(max_num_batched_tokens=-5), "at least 1"),
        (lambda: SchedulerConfig(max_num_batched_tokens=2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: SchedulerConfig(max_num_batched_tokens=True), "whole number"),
        (lambda: SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=8), "lower the second"),
        (lambda: SchedulerConfig(max_num_seqs=0), "at least 1"),
        (lambda: SchedulerConfig(enable_chunked_prefill=1), "True or False"),  # type: ignore[arg-type]
        (lambda: CacheConfig(block_size=0), "at least 1"),
        (lambda: CacheConfig(num_blocks=1), "at least 2"),
        (lambda: SamplingParams(max_tokens=0), "at least 1"),
        (lambda: SamplingParams(temperature=-1), "0 to 100"),
        (lambda: SamplingParams(temperature=float("nan")), "0 to 100"),
        (lambda: SamplingParams(top_p=0), "above 0"),
        (lambda: SamplingParams(min_tokens=9, max_tokens=3), "above max_tokens"),
        (lambda: SamplingParams(stop_token_ids="a"), "list or tuple"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_say_what_to_do(build: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()


def test_engine_settings_that_contradict_each_other_are_refused(tiny_model: Decoder) -> None:
    with pytest.raises(ConfigError, match="longest prompt would never fit"):  # D2: equality is accepted
        LLMEngine(
            tiny_model,
            scheduler_config=SchedulerConfig(95, max_num_seqs=4, enable_chunked_prefill=False),
        )
    LLMEngine(tiny_model, scheduler_config=SchedulerConfig(96, max_num_seqs=4, enable_chunked_prefill=False))
    with pytest.raises(ConfigError, match="max_model_len"):
        LLMEngine(tiny_model, max_model_len=97)
    with pytest.raises(ConfigError, match="give at least"):
        LLMEngine(tiny_model, cache_config=CacheConfig(kv_cache_memory_bytes=1000))
    with pytest.raises(ConfigError, match="slot_mapping_backend"):
        LLMEngine(tiny_model, slot_mapping_backend="cuda")
    with pytest.raises(ModelError, match="there is no model"):
        LLMEngine("no-such-model")
    with pytest.raises(ConfigError, match="do not belong together"):
        LLMEngine(tiny_model, tokenizer=ByteTokenizer())


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cuda"},
        {"device": "nonsense"},
        {"dtype": "float32"},
        {"dtype": "nonsense"},
        {"scheduler_config": 5},
        {"cache_config": {}},
        {"scheduler_cls": None},
    ],
)
def test_options_that_would_be_ignored_are_refused(tiny_model: Decoder, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        LLMEngine(tiny_model, **options)


def test_engines_may_share_a_loaded_model() -> None:
    loaded = load_model("quill")
    texts = set()
    for engine in (LLMEngine(loaded), LLMEngine(loaded), LLMEngine("quill", device="cpu")):
        assert engine.describe()["model"] == "quill"
        (output,) = engine.generate("To be, or not ", SamplingParams(max_tokens=6, temperature=0))
        texts.add(output.text)
    assert len(texts) == 1
    with pytest.raises(ConfigError, match="device"):
        LLMEngine(loaded, device="meta")


@pytest.mark.parametrize("model", [None, 5])
def test_a_model_that_is_none_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="give a name, a folder or a Decoder"):
        LLMEngine(model)


def test_numpy_and_torch_ids_and_generators_are_prompts_too(engine: LLMEngine) -> None:
    prompts = [np.array([1, 2]), torch.tensor([1, 2]), (token for token in (1, 2)), range(1, 3)]
    outputs = engine.generate(prompts, GREEDY)  # type: ignore[arg-type]
    assert {output.prompt_token_ids for output in outputs} == {(1, 2)}
    assert len({output.output_token_ids for output in outputs}) == 1


# --- a step that fails ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("beat", ["schedule", "prepare", "execute", "update", "forward"])
def test_a_step_that_fails_is_taken_back(
    tiny_model: Decoder, beat: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, in whatever beat: every request ends with the tokens it would have had, nobody is stuck."""
    params = SamplingParams(max_tokens=9, temperature=0 if seed is None else 1, seed=seed, ignore_eos=True)
    prompts = {"A": [1, 2, 3, 4, 5], "B": [1, 2, 3, 4, 9, 9, 9, 9], "C": [7]}

    def engine() -> LLMEngine:
        return LLMEngine(
            tiny_model,
            scheduler_config=SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=3),
            cache_config=CacheConfig(block_size=4, num_blocks=30),
        )

    undisturbed = engine()
    for name, prompt in prompts.items():
        undisturbed.add_request(name, prompt, params)
    expected = run(undisturbed)

    for failing_step in range(6):
        disturbed = engine()
        tokens: dict[str, tuple[int, ...]] = {}

        def watch(event: Event, engine: LLMEngine = disturbed, at: int = failing_step) -> None:
            if engine.num_steps == at and isinstance(event, BeatStarted) and event.beat == beat:
                engine.observer = None
                raise KeyboardInterrupt

        disturbed.observer = watch
        if beat == "forward":
            disturbed.observer = None
            forward, calls = disturbed.runner.forward, iter(range(1000))

            def fail_once(
                inputs: Any, forward: Any = forward, calls: Any = calls, at: int = failing_step
            ) -> torch.Tensor:
                logits: torch.Tensor = forward(inputs)
                if next(calls) == at:
                    raise KeyboardInterrupt
                return logits

            monkeypatch.setattr(disturbed.runner, "forward", fail_once)
        for name, prompt in prompts.items():
            disturbed.add_request(name, prompt, params)
        interrupts = 0
        while disturbed.has_unfinished_requests():
            try:
                for output in disturbed.step():
                    tokens[output.request_id] = output.output_token_ids
            except KeyboardInterrupt:
                interrupts += 1
            disturbed.check_integrity()
        assert interrupts == 1
        assert tokens == expected


def test_nothing_of_an_interrupted_generate_can_be_hit(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(12))
    expected = engine.generate([prompt], GREEDY)[0].output_token_ids
    engine.kv_cache_manager.reset_prefix_cache()

    def interrupted(inputs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate([prompt], GREEDY)
    assert engine.generate([prompt], GREEDY)[0].output_token_ids == expected


@pytest.mark.parametrize("kind", ["RequestScheduled", "BlocksAllocated", "TokenSampled", "TokenAccepted", "RowAdded"])
def test_an_observer_may_only_watch(engine: LLMEngine, kind: str) -> None:
    refused = []

    def meddle(event: Event) -> None:
        if event.kind == kind:
            for call in (engine.step, lambda: engine.abort_request("A"), lambda: engine.add_request("Z", [1])):
                with pytest.raises(EngineBusyError, match="may only watch"):
                    call()
                refused.append(event)

    engine.observer = meddle
    engine.add_request("A", [1, 2, 3], GREEDY)
    assert len(run(engine)["A"]) == 4
    assert refused


def test_an_engine_cannot_be_copied(engine: LLMEngine) -> None:
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PagedlabError, match="build another one"):
            copier(engine)


def test_priorities_and_salts_reach_the_scheduler(tiny_model: Decoder) -> None:
    engine = LLMEngine(tiny_model, scheduler_config=SchedulerConfig(8, max_num_seqs=1, policy="priority"))
    for name, priority in (("low", 9), ("high", 1)):
        engine.add_request(name, [1, 2, 3, 4], GREEDY, priority=priority, cache_salt=name)
    first = engine.step()
    assert [output.request_id for output in first] == ["high"]
    assert engine.scheduler.requests["low"].cache_salt == "low"


# --- the life of a request -----------------------------------------------------------------------------------


def test_a6_abort_and_reuse_of_an_id_between_two_steps(engine: LLMEngine) -> None:
    engine.add_request("r0", [1, 2, 3, 4, 5], GREEDY)
    engine.step()
    engine.abort_request("r0")
    engine.add_request("r0", [9, 8], GREEDY)
    engine.step()
    engine.check_integrity()
    assert engine.runner.input_batch.req_ids == ["r0"]
    assert engine.runner.requests["r0"].prompt_token_ids == (9, 8)
    assert engine.kv_cache_manager.num_free_blocks == 11 - 1
    run(engine)
    assert engine.kv_cache_manager.num_free_blocks == 11


def test_abort_of_waiting_running_and_unknown_requests(engine: LLMEngine) -> None:
    for name in "ABCDE":
        engine.add_request(name, [1, 2, 3], GREEDY)
    engine.step()
    assert engine.abort_request(["A", "E", "nobody", "A"]) == ["A", "E"]
    assert set(run(engine)) == {"B", "C", "D"}
    assert engine.kv_cache_manager.num_free_blocks == 11


def test_a_step_without_requests_is_harmless(engine: LLMEngine) -> None:
    assert engine.step() == []
    engine.add_request("A", [1], GREEDY)
    run(engine)
    assert engine.step() == []
    assert engine.runner.requests == {}


def test_the_longest_request_ends_at_max_model_len(engine: LLMEngine) -> None:
    (output,) = engine.generate([[1] * 30], SamplingParams(max_tokens=50, temperature=0, ignore_eos=True))
    assert len(output.output_token_ids) == 2
    assert output.finish_reason == "length"


def test_end_of_text_stops_unless_it_is_ignored_or_too_early(engine: LLMEngine) -> None:
    greedy = engine.generate([[5, 6]], SamplingParams(max_tokens=6, temperature=0))[0].output_token_ids
    stop = greedy[2]
    first = greedy.index(stop)
    stopped = engine.generate([[5, 6]], SamplingParams(max_tokens=6, temperature=0, stop_token_ids=(stop,)))[0]
    assert stopped.finish_reason == "stop"
    assert stopped.output_token_ids == greedy[: first + 1]
    late = SamplingParams(max_tokens=6, min_tokens=first + 2, temperature=0, stop_token_ids=(stop,))
    assert len(engine.generate([[5, 6]], late)[0].output_token_ids) > first + 1


def test_a_seeded_request_draws_the_same_tokens_alone_and_in_company(tiny_model: Decoder) -> None:
    def tokens(budget: int, companions: int) -> tuple[int, ...]:
        engine = LLMEngine(tiny_model, scheduler_config=SchedulerConfig(budget, max_num_seqs=8))
        prompts = [[3] * 20] + [[7 + i] * 5 for i in range(companions)]
        params = [SamplingParams(max_tokens=10, temperature=1.0, seed=11)]
        params += [SamplingParams(max_tokens=10, temperature=1.0)] * companions
        return engine.generate(prompts, params)[0].output_token_ids

    alone = tokens(2048, 0)
    assert tokens(2048, 5) == alone
    assert tokens(8, 5) == alone  # a partial prefill does not use up the generator
    assert (
        alone != LLMEngine(tiny_model).generate([[3] * 20], SamplingParams(max_tokens=10, seed=12))[0].output_token_ids
    )


def test_top_k_and_top_p_keep_the_likeliest_tokens(tiny_model: Decoder) -> None:
    greedy = LLMEngine(tiny_model).generate([[1, 2]], GREEDY)[0].output_token_ids
    for params in (SamplingParams(max_tokens=4, top_k=1), SamplingParams(max_tokens=4, top_p=1e-6)):
        assert LLMEngine(tiny_model).generate([[1, 2]], params)[0].output_token_ids == greedy


def test_outputs_stream_text_that_never_ends_inside_a_character() -> None:
    """A model that writes the bytes of an accented word, whatever it is asked."""
    word = "été".encode()

    class Script(Decoder):
        def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
            self.calls = getattr(self, "calls", -1) + 1
            logits = torch.zeros(len(hidden), self.config.vocab_size)
            logits[:, word[self.calls]] = 1
            return logits

    from pagedlab.model.config import DecoderConfig

    config = DecoderConfig(
        vocab_size=257,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=32,
    )
    engine = LLMEngine(Script(config), tokenizer=ByteTokenizer())
    engine.add_request("A", "?", SamplingParams(max_tokens=len(word), temperature=0))
    pieces = []
    while engine.has_unfinished_requests():
        (output,) = engine.step()
        pieces.append(output.new_text)
        assert "".join(pieces) == output.text
    assert pieces == ["", "é", "t", "", "é"]


def test_static_batching_serves_the_same_tokens_in_more_steps(tiny_model: Decoder) -> None:
    def run_with(scheduler_cls: type[Scheduler]) -> tuple[list[tuple[int, ...]], int]:
        engine = LLMEngine(
            tiny_model, scheduler_config=SchedulerConfig(64, max_num_seqs=2), scheduler_cls=scheduler_cls
        )
        params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (2, 9, 3, 4)]
        outputs = engine.generate([[n] * n for n in (1, 2, 3, 4)], params)
        assert engine.describe()["scheduler"] == scheduler_cls.__name__
        return [output.output_token_ids for output in outputs], engine.num_steps

    tokens, steps = run_with(Scheduler)
    static_tokens, static_steps = run_with(StaticBatchScheduler)
    assert static_tokens == tokens
    assert static_steps > steps


def test_an_interrupt_in_generate_leaves_nothing_behind(engine: LLMEngine) -> None:
    def interrupt(event: object) -> None:
        if engine.num_steps == 2:
            engine.observer = None  # once, as Ctrl-C does
            raise KeyboardInterrupt

    engine.observer = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1, 2, 3], [4, 5, 6, 7]], SamplingParams(max_tokens=20, temperature=0))
    assert not engine.has_unfinished_requests()
    assert engine.generate([[1, 2, 3]], GREEDY)[0].finished
    engine.check_integrity()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_config": CacheConfig(num_blocks=2**40)}, "KV memory would take"),
        ({"cache_config": CacheConfig(num_blocks=2, block_size=2**60)}, "KV memory would take"),
        ({"scheduler_config": SchedulerConfig(2**62, max_num_seqs=4)}, "the batch would take"),
        ({"scheduler_config": SchedulerConfig(2**31, max_num_seqs=2**31)}, "the batch would take"),
    ],
)
def test_settings_that_no_machine_has_memory_for_are_refused_at_once(
    tiny_model: Decoder, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LLMEngine(tiny_model, device="cpu", **options)
