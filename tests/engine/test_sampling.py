"""Sampling settings from `add_request` to the output: each acts, none acts on others, bad ones are refused."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_sampler import reference_logprobs, reference_token

from pagedlab import CacheConfig, LLMEngine, RequestOutput, SamplingParams, SchedulerConfig
from pagedlab.cli import main
from pagedlab.errors import ConfigError, RequestError
from pagedlab.events import BeatStarted, Event
from pagedlab.model.decoder import Decoder, DenseAttention
from pagedlab.request import Request

VOCAB, EOS = 64, 63
GREEDY = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
PROMPT = [5, 6, 7]


def with_(**changes: Any) -> SamplingParams:
    return dataclasses.replace(GREEDY, **changes)


def small_engine(model: Decoder, budget: int = 16, num_blocks: int = 40) -> LLMEngine:
    return LLMEngine(
        model,
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4),
        cache_config=CacheConfig(block_size=4, num_blocks=num_blocks),
    )


def generate(model: Decoder, params: SamplingParams, prompt: Sequence[int] = PROMPT) -> tuple[int, ...]:
    return small_engine(model).generate([prompt], params)[0].output_token_ids


@pytest.fixture(scope="module")
def plain(tiny_model: Decoder) -> tuple[int, ...]:
    """What the model writes if nothing is set."""
    return generate(tiny_model, GREEDY)


# --- against the model and the reference sampler, without batch, blocks or cache -----------------------------------


@torch.inference_mode()
def dense_logits(model: Decoder, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    hidden = model(torch.tensor(tokens), torch.arange(len(tokens)), DenseAttention(num_sequences=1))
    logits: npt.NDArray[np.float64] = model.compute_logits(hidden[-1:])[0].numpy()
    return logits


def expected(
    model: Decoder, prompt: Sequence[int], params: SamplingParams
) -> tuple[tuple[int, ...], list[tuple[float, int, list[tuple[int, float]]]]]:
    """The output of a request that has the model to itself, and its log-probabilities."""
    generator = None if params.seed is None else torch.Generator().manual_seed(params.seed)
    request = Request("A", prompt, params, 0, EOS)
    logprobs = []
    while not request.is_finished:
        logits = dense_logits(model, request.all_token_ids)
        noise = None
        if generator is not None and not params.greedy:
            noise = torch.empty(VOCAB, dtype=torch.float64).exponential_(generator=generator).numpy()
        token = reference_token(logits, params, prompt, request.output_token_ids, EOS, noise)
        logprobs.append(reference_logprobs(logits, token, VOCAB if params.logprobs == -1 else params.logprobs or 0))
        request.append_output_token_id(token)
        request.check_stop(model.config.max_position_embeddings)
    return tuple(request.output_token_ids), logprobs


tokens = st.integers(0, VOCAB - 1)
few = st.sampled_from([1, 2, 30, EOS])
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(6, 10),
    min_tokens=st.sampled_from([0, 0, 2, 6]),
    temperature=st.sampled_from([0, 0.7, 2]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 0, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**20),
    stop_token_ids=st.lists(tokens, max_size=4),
    ignore_eos=st.booleans(),
    frequency_penalty=st.sampled_from([0.0, 0.0, 1.3, -2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.7]),
    logit_bias=st.none() | st.dictionaries(few | tokens, st.sampled_from([-3.0, 4.0, 8.0]), max_size=5),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=5, max_size=20, unique=True),
    bad_words_token_ids=st.just(()) | st.lists(st.lists(few | tokens, min_size=1, max_size=2), max_size=8),
    logprobs=st.sampled_from([None, 0, 2, -1]),
)


@given(
    requests=st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=20), params), min_size=1, max_size=6),
    budget=st.sampled_from([4, 9, 64]),
    num_blocks=st.sampled_from([9, 12, 60]),  # the fewest that one request fits in: then others are preempted
)
@settings(max_examples=20, deadline=None)
def test_any_mix_of_settings_gives_each_request_what_it_gets_alone(
    tiny_model: Decoder, requests: list[tuple[list[int], SamplingParams]], budget: int, num_blocks: int
) -> None:
    engine = small_engine(tiny_model, budget, num_blocks)
    outputs = engine.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, outputs, strict=True):
        token_ids, logprobs = expected(tiny_model, prompt, params)
        assert output.output_token_ids == token_ids
        if params.logprobs is None:
            assert output.logprobs is None
            continue
        assert output.logprobs is not None
        for token, record, (logprob, rank, top) in zip(token_ids, output.logprobs, logprobs, strict=True):
            assert (record.token_id, record.rank) == (token, rank)
            assert record.logprob == pytest.approx(logprob)
            assert [t for t, _ in record.top] == [t for t, _ in top]
            assert [value for _, value in record.top] == pytest.approx([value for _, value in top])


# --- each setting acts -----------------------------------------------------------------------------------------


def test_the_model_repeats_itself_unless_it_is_told_not_to(plain: tuple[int, ...]) -> None:
    """What the tests below rely on."""
    assert len(plain) == 16
    assert len(set(plain)) < 16


@pytest.mark.parametrize(
    "changes", [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.5}]
)
def test_penalties_make_the_model_repeat_itself_less(
    tiny_model: Decoder, plain: tuple[int, ...], changes: dict[str, float]
) -> None:
    assert len(set(generate(tiny_model, with_(**changes)))) > len(set(plain))


def test_a_repetition_penalty_counts_the_prompt_and_the_others_do_not(tiny_model: Decoder) -> None:
    one = with_(max_tokens=1)
    for number in range(VOCAB - 3):
        prompt = [number, number + 1, number + 2]
        (token,) = generate(tiny_model, one, prompt)
        if token in prompt:
            break
    assert token in prompt
    assert generate(tiny_model, with_(repetition_penalty=1000.0), prompt)[0] != token
    assert generate(tiny_model, with_(frequency_penalty=2.0, presence_penalty=2.0), prompt)[0] == token


def test_a_bias_forces_a_token_or_forbids_it(tiny_model: Decoder, plain: tuple[int, ...]) -> None:
    assert generate(tiny_model, with_(logit_bias={9: 100})) == (9,) * 16
    assert plain[0] not in generate(tiny_model, with_(logit_bias={plain[0]: -100}))


def test_only_allowed_tokens_are_sampled(tiny_model: Decoder, plain: tuple[int, ...]) -> None:
    allowed = (3, 9, 44)
    assert not set(plain) <= set(allowed)
    output = generate(tiny_model, with_(allowed_token_ids=allowed, temperature=2.0, seed=1))
    assert len(set(output)) > 1
    assert set(output) <= set(allowed)


def test_bad_words_do_not_appear(tiny_model: Decoder, plain: tuple[int, ...]) -> None:
    words = ((plain[0],), plain[2:4], plain[4:7])
    output = generate(tiny_model, with_(bad_words_token_ids=words, max_tokens=40))
    for word in words:
        assert word not in {output[i : i + len(word)] for i in range(len(output))}
    only_second = generate(tiny_model, with_(bad_words_token_ids=(plain[1:3],)))
    assert only_second[:2] == plain[:2]  # a word may begin
    assert only_second[2] != plain[2]  # but not end


def test_a_bad_word_that_the_prompt_begins_may_end_in_the_output(tiny_model: Decoder, plain: tuple[int, ...]) -> None:
    """As in vLLM: only the output counts."""
    word = (PROMPT[-1], plain[0])
    assert generate(tiny_model, with_(bad_words_token_ids=(word,)))[0] == plain[0]


def test_min_p_of_one_leaves_the_likeliest_token(tiny_model: Decoder, plain: tuple[int, ...]) -> None:
    assert generate(tiny_model, with_(temperature=2.0, seed=1)) != plain
    assert generate(tiny_model, with_(temperature=2.0, seed=1, min_p=1.0)) == plain


def test_min_tokens_keeps_stop_tokens_from_being_sampled(tiny_model: Decoder, plain: tuple[int, ...]) -> None:
    stop = plain[1]
    output = generate(tiny_model, with_(stop_token_ids=(stop,), min_tokens=6))
    assert stop not in output[:5]  # not merely ignored, as before min_tokens was the sampler's too
    forced = with_(ignore_eos=False, logit_bias={EOS: 100})
    assert generate(tiny_model, forced) == (EOS,)
    held = generate(tiny_model, dataclasses.replace(forced, min_tokens=6))
    assert EOS not in held[:6]
    assert held[6:] == (EOS,)


def test_settings_leave_with_their_request(tiny_model: Decoder, plain: tuple[int, ...]) -> None:
    """The next request in the row is as if it had never been used."""
    engine = small_engine(tiny_model)
    every = with_(
        logit_bias={9: 50},
        allowed_token_ids=(9, 10),
        bad_words_token_ids=((9, 9, 9),),
        min_tokens=16,
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        logprobs=2,
    )
    engine.generate([PROMPT] * 4, every)
    outputs = engine.generate([PROMPT] * 4, GREEDY)
    assert [output.output_token_ids for output in outputs] == [plain] * 4
    assert [output.logprobs for output in outputs] == [None] * 4


# --- log-probabilities -------------------------------------------------------------------------------------------


def steps(engine: LLMEngine, outputs: list[RequestOutput] | None = None) -> list[RequestOutput]:
    outputs = [] if outputs is None else outputs
    while engine.has_unfinished_requests():
        outputs += engine.step()
        engine.check_integrity()
    return outputs


def test_logprobs_come_with_their_tokens_step_by_step(tiny_model: Decoder) -> None:
    engine = small_engine(tiny_model, budget=4)  # the prompt takes several steps
    engine.add_request("A", [1] * 11, with_(logprobs=2))
    outputs = steps(engine)
    assert len(outputs) == 16
    for output in outputs:
        assert output.logprobs is not None
        assert output.new_logprobs is not None
        assert [record.token_id for record in output.logprobs] == [*output.output_token_ids]
        assert output.logprobs[-len(output.new_token_ids) :] == output.new_logprobs
        assert all(record.rank == 1 and len(record.top) == 2 for record in output.logprobs)


def test_logprobs_of_the_whole_vocabulary_sum_to_one_and_ignore_settings(tiny_model: Decoder) -> None:
    params = with_(logprobs=-1, max_tokens=1)
    (plain,) = small_engine(tiny_model).generate([PROMPT], params)
    (changed,) = small_engine(tiny_model).generate(
        [PROMPT], dataclasses.replace(params, logit_bias={9: 100}, temperature=3.0, top_k=1)
    )
    assert plain.logprobs is not None
    assert changed.logprobs is not None
    (first,), (second,) = plain.logprobs, changed.logprobs
    assert first.top == second.top
    assert len(first.top) == VOCAB
    assert sum(math.exp(value) for _, value in first.top) == pytest.approx(1)
    assert second.token_id == 9
    assert second.rank == 1 + [token for token, _ in first.top].index(9)
    assert second.logprob == dict(second.top)[9]


@pytest.mark.parametrize("beat", ["schedule", "prepare", "execute", "update"])
def test_a_step_taken_back_leaves_tokens_and_logprobs_as_if_it_had_never_been(tiny_model: Decoder, beat: str) -> None:
    def output(failing: bool) -> RequestOutput:
        engine = small_engine(tiny_model)

        def fail(event: Event) -> None:
            if engine.num_steps == 5 and isinstance(event, BeatStarted) and event.beat == beat:
                engine.observer = None
                raise KeyboardInterrupt

        params = with_(
            temperature=1.0, seed=3, logprobs=3, frequency_penalty=1.0, min_tokens=9, bad_words_token_ids=((1, 2),)
        )
        engine.add_request("A", PROMPT, params)
        outputs: list[RequestOutput] = []
        if failing:
            engine.observer = fail
            with pytest.raises(KeyboardInterrupt):
                steps(engine, outputs)
        steps(engine, outputs)
        assert [record for o in outputs for record in o.new_logprobs or ()] == list(outputs[-1].logprobs or ())
        return outputs[-1]

    failed, whole = output(failing=True), output(failing=False)
    assert failed.output_token_ids == whole.output_token_ids
    for ours, theirs in zip(failed.logprobs or (), whole.logprobs or (), strict=True):
        assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
        assert ours.logprob == pytest.approx(theirs.logprob)


def test_a_record_whose_token_was_lost_with_its_step_is_lost_too(tiny_model: Decoder) -> None:
    """An interrupt can come between the two."""
    engine = small_engine(tiny_model)
    engine.add_request("A", PROMPT, with_(logprobs=0))
    (output,) = engine.step()
    assert output.new_logprobs is not None
    engine._streams["A"].logprobs.extend(output.new_logprobs)

    def fail(event: Event) -> None:
        engine.observer = None
        raise KeyboardInterrupt

    engine.observer = fail
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    last = steps(engine)[-1]
    assert tuple(record.token_id for record in last.logprobs or ()) == last.output_token_ids


# --- settings as values ------------------------------------------------------------------------------------------


def test_sampling_params_are_values() -> None:
    bias = {7: 1, 2: -100}
    params = SamplingParams(
        logit_bias=bias,
        allowed_token_ids=[1, 2],  # type: ignore[arg-type]
        bad_words_token_ids=[[1], [2, 3]],  # type: ignore[arg-type]
    )
    bias[7] = 5
    assert params.logit_bias == ((2, -100.0), (7, 1.0))
    assert (params.allowed_token_ids, params.bad_words_token_ids) == ((1, 2), ((1,), (2, 3)))
    assert pickle.loads(pickle.dumps(params)) == dataclasses.replace(params) == params
    assert len({params, dataclasses.replace(params)}) == 1
    assert SamplingParams(logit_bias={}) == SamplingParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.logprobs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_p": 1.5}, "0 to 1"),
        ({"min_p": math.nan}, "0 to 1"),
        ({"min_p": "0.5"}, "0 to 1"),
        ({"frequency_penalty": 2.1}, "-2 to 2"),
        ({"presence_penalty": -2.1}, "-2 to 2"),
        ({"repetition_penalty": 0}, "0.001 to 1000"),
        ({"repetition_penalty": math.inf}, "0.001 to 1000"),
        ({"logit_bias": {5: 101}}, "bias of token 5 is 101.*-100 to 100"),
        ({"logit_bias": {5: math.nan}}, "-100 to 100"),
        ({"logit_bias": {-1: 1}}, "logit_bias is -1"),
        ({"logit_bias": {"a": 1}}, "logit_bias is 'a'"),
        ({"logit_bias": 5}, "give a dict"),
        ({"allowed_token_ids": ()}, "is empty"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids is -1"),
        ({"allowed_token_ids": 5}, "list or tuple"),
        ({"bad_words_token_ids": ((),)}, "empty bad word"),
        ({"bad_words_token_ids": (1,)}, "list or tuple"),
        ({"bad_words_token_ids": "ab"}, "list or tuple"),
        ({"bad_words_token_ids": ((1.5,),)}, "bad_words_token_ids is 1.5"),
        ({"logprobs": -2}, "at least -1"),
        ({"logprobs": True}, "whole number"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SamplingParams(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"allowed_token_ids": (3, 64)}, "allowed_token_ids holds 64.*0 to 63"),
        ({"bad_words_token_ids": ((1, 2), (3, 99))}, "bad_words_token_ids holds 99"),
        ({"logit_bias": {64: 1.0, 3: 1.0}}, "logit_bias holds 64"),
        ({"stop_token_ids": (64,)}, "stop_token_ids holds 64"),
        ({"logprobs": 65}, "logprobs is 65.*64 tokens.*-1"),
        ({"allowed_token_ids": (3, 4), "bad_words_token_ids": ((3,), (4,))}, "allow another"),
        ({"allowed_token_ids": (EOS,), "min_tokens": 1, "ignore_eos": False}, "allow another"),
        ({"allowed_token_ids": (3, 4), "stop_token_ids": (3, 4), "min_tokens": 1}, "allow another"),
        ({"bad_words_token_ids": tuple((token,) for token in range(VOCAB))}, "allow another"),
    ],
)
@pytest.mark.parametrize(
    "call", [lambda e, p: e.add_request("X", [1], p), lambda e, p: e.generate([[1], [2]], [GREEDY, p])]
)
def test_settings_beyond_the_vocabulary_are_refused_and_the_engine_goes_on(
    tiny_model: Decoder,
    call: Callable[[LLMEngine, SamplingParams], object],
    settings: dict[str, Any],
    words: str,
) -> None:
    engine = small_engine(tiny_model)
    engine.add_request("A", PROMPT, GREEDY)
    with pytest.raises(RequestError, match=words):
        call(engine, with_(**settings))
    assert list(engine.scheduler.requests) == ["A"]
    assert steps(engine)[-1].finished


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_token_ids": (0, 63), "logprobs": 64, "bad_words_token_ids": ((63,),)},
        {"allowed_token_ids": (EOS,), "min_tokens": 1, "ignore_eos": True},
        {"allowed_token_ids": (EOS,), "min_tokens": 0, "ignore_eos": False},
    ],
)
def test_settings_at_the_edge_of_the_vocabulary_are_served(tiny_model: Decoder, settings: dict[str, Any]) -> None:
    assert small_engine(tiny_model).generate([PROMPT], with_(**settings))[0].finished


# --- the command line ------------------------------------------------------------------------------------------------


def test_generate_takes_sampling_options(capsys: pytest.CaptureFixture[str]) -> None:
    def text(*options: str) -> str:
        assert main(["generate", "To be", "--max-tokens", "30", "--seed", "0", "--temperature", "1", *options]) == 0
        return capsys.readouterr().out

    greedy, sampled = text("--temperature", "0"), text()
    assert sampled != greedy
    assert text("--top-k", "1") == text("--top-p", "0.0001") == text("--min-p", "1") == greedy
    for option in ("--repetition-penalty", "--frequency-penalty", "--presence-penalty"):
        assert text("--temperature", "0", option, "2") != greedy
    assert main(["generate", "To be", "--min-p", "3"]) == 2
    assert "min_p is 3.0" in capsys.readouterr().err


# --- adapters ------------------------------------------------------------------------------------------------------


def test_requests_of_different_adapters_write_the_same_and_share_no_blocks(tiny_model: Decoder) -> None:
    engine = small_engine(tiny_model)
    outputs = []
    for number, lora_id in enumerate((0, 1, 2**31 - 1, 1)):
        engine.add_request(str(number), [1] * 11, GREEDY, lora_id=lora_id)
        outputs.append(steps(engine)[-1].output_token_ids)
        stats = engine.kv_cache_manager.prefix_cache_stats
        assert stats.num_hit_tokens == (8 if number == 3 else 0)
    assert len(set(outputs)) == 1


@pytest.mark.parametrize("lora_id", [-1, 2**31, 1.5, True])
def test_a_lora_id_that_no_row_can_hold_is_refused(tiny_model: Decoder, lora_id: Any) -> None:
    engine = small_engine(tiny_model)
    with pytest.raises(ConfigError, match="lora_id is"):
        engine.add_request("A", PROMPT, GREEDY, lora_id=lora_id)
    assert not engine.has_unfinished_requests()
    engine.check_integrity()


# --- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_settings_act_on_the_gpu_as_on_the_cpu() -> None:
    every = [
        SamplingParams(max_tokens=24, temperature=0, **changes)
        for changes in (
            {"frequency_penalty": 1.5, "logprobs": 3},
            {"repetition_penalty": 1.4, "presence_penalty": 0.5},
            {"bad_words_token_ids": ((32, 116), (101,)), "logprobs": 0},
            {"allowed_token_ids": tuple(range(97, 123))},
            {"logit_bias": {32: -100.0, 10: 3.0}, "min_tokens": 20, "stop_token_ids": (97, 101)},
        )
    ]

    def outputs(device: str) -> list[RequestOutput]:
        engine = LLMEngine("quill", device=device, dtype="float32", scheduler_config=SchedulerConfig(8, max_num_seqs=4))
        return engine.generate(["To be, or not", "The king", "Sing", "O Romeo", "What"], every)

    for ours, theirs in zip(outputs("cuda"), outputs("cpu"), strict=True):
        assert ours.output_token_ids == theirs.output_token_ids
        for record, other in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
            assert record.rank == other.rank
            assert record.logprob == pytest.approx(other.logprob, abs=1e-3)
