"""The sampler against a slow NumPy reference, row by row; rows keep to themselves; log-probabilities add up."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_sampler import reference_logprobs, reference_probabilities, reference_rules, reference_token
from torch import Tensor

from pagedlab.batch import AddedRow, BatchUpdate, SamplingMetadata, builtin_logits_processors
from pagedlab.request import SamplingParams
from pagedlab.runner.sampler import probabilities, process_logits, sample, skip_draws, token_logprobs

CPU = torch.device("cpu")
VOCAB, EOS = 12, 11
GREEDY = SamplingParams(max_tokens=99, temperature=0)


@dataclasses.dataclass(frozen=True)
class Row:
    """One request at one step. Its logits come from ``logits_seed``."""

    params: SamplingParams = GREEDY
    prompt: tuple[int, ...] = (0, 1)
    output: tuple[int, ...] = ()
    logits_seed: int = 0

    @property
    def logits(self) -> npt.NDArray[np.float64]:
        return np.random.default_rng(self.logits_seed).normal(scale=2.0, size=VOCAB)

    @property
    def noise(self) -> npt.NDArray[np.float64] | None:
        if self.params.seed is None:
            return None
        generator = torch.Generator().manual_seed(self.params.seed)
        noise: npt.NDArray[np.float64] = (
            torch.empty(VOCAB, dtype=torch.float64).exponential_(generator=generator).numpy()
        )
        return noise


def logits_of(rows: list[Row]) -> Tensor:
    return torch.from_numpy(np.stack([row.logits for row in rows]))


def metadata_of(rows: list[Row], vocab_size: int = VOCAB, device: torch.device = CPU) -> SamplingMetadata:
    """What the batch would tell the sampler; a part that no row uses is left out."""
    params = [row.params for row in rows]
    parts: dict[str, Any] = {}

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(p, name) for p in params], dtype=torch.float32)

    if any(not p.greedy for p in params):
        parts["temperature"] = column("temperature")
    if any(p.top_p < 1 for p in params):
        parts["top_p"] = column("top_p")
    if any(p.top_k for p in params):
        parts["top_k"] = torch.tensor([min(p.top_k or vocab_size, vocab_size) for p in params], dtype=torch.int32)
    if any(p.has_penalties for p in params):
        for name in ("frequency", "presence", "repetition"):
            parts[f"{name}_penalties"] = column(f"{name}_penalty")
        longest = max(len(row.prompt) for row in rows)
        padded = [[*row.prompt] + [vocab_size] * (longest - len(row.prompt)) for row in rows]
        parts["prompt_token_ids"] = torch.tensor(padded)
    if any(p.has_penalties or p.bad_words_token_ids for p in params):
        parts["output_token_ids"] = [list(row.output) for row in rows]
    if any(p.allowed_token_ids for p in params):
        mask = torch.zeros(len(rows), vocab_size, dtype=torch.bool)
        for index, p in enumerate(params):
            if p.allowed_token_ids:
                mask[index] = True
                mask[index, list(p.allowed_token_ids)] = False
        parts["allowed_token_ids_mask"] = mask
    processors = builtin_logits_processors(device, EOS)
    added = tuple(AddedRow(index, row.params, row.prompt, list(row.output)) for index, row in enumerate(rows))
    for processor in processors:
        processor.update_state(BatchUpdate(len(rows), (), added, ()))
    return SamplingMetadata(
        generators={
            index: torch.Generator(device).manual_seed(p.seed) for index, p in enumerate(params) if p.seed is not None
        },
        bad_words_token_ids={index: p.bad_words_token_ids for index, p in enumerate(params) if p.bad_words_token_ids},
        num_logprobs={
            index: vocab_size if p.logprobs == -1 else p.logprobs
            for index, p in enumerate(params)
            if p.logprobs is not None
        },
        logits_processors=processors,
        **{name: part.to(device) if isinstance(part, Tensor) else part for name, part in parts.items()},
    )


def sampled(*rows: Row) -> list[int]:
    tokens: list[int] = sample(logits_of(list(rows)), metadata_of(list(rows))).tolist()
    return tokens


few = st.integers(0, 3)  # so few that words, prompts and outputs meet
tokens = st.integers(0, VOCAB - 1)
params = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    min_tokens=st.sampled_from([0, 0, 2, 9]),
    temperature=st.sampled_from([0, 0.01, 0.7, 1, 3]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5, 1e-50]),
    top_k=st.sampled_from([0, 0, 1, 3, 8, VOCAB, 99]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]),
    seed=st.integers(0, 2**20),
    stop_token_ids=st.lists(tokens, max_size=2),
    ignore_eos=st.booleans(),
    frequency_penalty=st.sampled_from([0.0, 0.0, 1.3, -2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -1.1]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.7, 0.3]),
    logit_bias=st.none() | st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.0, 100.0]), max_size=3),
    allowed_token_ids=st.none() | st.lists(few | tokens, min_size=1, max_size=4),
    bad_words_token_ids=st.just(()) | st.lists(st.lists(few | tokens, min_size=1, max_size=3), max_size=4),
    logprobs=st.sampled_from([None, 0, 1, 3, VOCAB, -1]),
)
plain_rows = st.builds(Row, prompt=st.just((0, 1)), logits_seed=st.integers(0, 2**30))
rows = st.builds(
    Row,
    params=params,
    prompt=st.lists(few | tokens, min_size=1, max_size=6).map(tuple),
    output=st.lists(few | tokens, max_size=6).map(tuple),
    logits_seed=st.integers(0, 2**30),
)
batches = st.lists(rows | plain_rows, min_size=1, max_size=6)


# --- step by step -----------------------------------------------------------------------------------------------


@given(batch=batches)
@settings(max_examples=200, deadline=None)
def test_rules_and_penalties_make_the_logits_of_the_reference(batch: list[Row]) -> None:
    processed = process_logits(logits_of(batch), metadata_of(batch)).numpy()
    for row, ours in zip(batch, processed, strict=True):
        assert ours.max() > -np.inf
        np.testing.assert_allclose(
            ours, reference_rules(row.logits, row.params, row.prompt, row.output, EOS), rtol=1e-12
        )


@given(batch=batches)
@settings(max_examples=200, deadline=None)
def test_random_rows_draw_from_the_probabilities_of_the_reference(batch: list[Row]) -> None:
    logits = logits_of(batch)
    probs = probabilities(logits, metadata_of(batch)).numpy()
    for row, ours in zip(batch, probs, strict=True):
        if not row.params.greedy:
            np.testing.assert_allclose(ours, reference_probabilities(row.logits, row.params), atol=1e-12)


# --- the sampler as a whole -----------------------------------------------------------------------------------


@given(batch=batches)
@settings(max_examples=150, deadline=None)
@example(batch=[Row(dataclasses.replace(GREEDY, min_tokens=9, allowed_token_ids=(EOS,))), Row()])
def test_every_row_gets_the_token_of_the_reference(batch: list[Row]) -> None:
    expected = [reference_token(row.logits, row.params, row.prompt, row.output, EOS, row.noise) for row in batch]
    assert sampled(*batch) == expected


@given(batch=batches)
@settings(max_examples=100, deadline=None)
def test_a_row_gets_the_same_alone_and_in_company(batch: list[Row]) -> None:
    logits, metadata = logits_of(batch).float(), metadata_of(batch)
    together = sample(logits, metadata)
    records = token_logprobs(logits, together, metadata)
    for index, row in enumerate(batch):
        lone_logits, lone_metadata = logits[index : index + 1], metadata_of([row])
        alone = sample(lone_logits, lone_metadata)
        assert alone[0] == together[index]
        assert token_logprobs(lone_logits, alone, lone_metadata).get(0) == records.get(index)


@given(batch=batches)
@settings(max_examples=40, deadline=None)
def test_the_logits_stay_as_the_model_made_them(batch: list[Row]) -> None:
    logits = logits_of(batch)
    before = logits.clone()
    metadata = metadata_of(batch)
    token_logprobs(logits, sample(logits, metadata), metadata)
    assert torch.equal(logits, before)


def test_tokens_without_a_seed_are_drawn_as_often_as_they_are_likely() -> None:
    params = SamplingParams(temperature=2, top_p=0.95, top_k=9, min_p=0.02, presence_penalty=0.5, logit_bias={3: 1})
    row = Row(params, output=(2, 2, 5), logits_seed=4)
    probs = reference_probabilities(reference_rules(row.logits, params, row.prompt, row.output, EOS), params)
    number = 40_000
    torch.manual_seed(0)
    drawn = torch.tensor(sampled(*[row] * number))
    counts = torch.bincount(drawn, minlength=VOCAB).numpy()
    assert (counts[probs == 0] == 0).all()
    assert 3 < (probs > 0).sum() < VOCAB
    assert (np.abs(counts - number * probs) <= 5 * np.sqrt(number * probs * (1 - probs))).all()


def test_half_precision_logits_are_processed_in_float32() -> None:
    params = SamplingParams(seed=1, top_p=0.9, logprobs=2, repetition_penalty=1.1, logit_bias={3: 0.001})
    batch = [Row(params, output=(3, 4), logits_seed=seed) for seed in range(20)]
    logits, metadata = logits_of(batch).bfloat16(), metadata_of(batch)
    processed = process_logits(logits, metadata)
    assert torch.equal(processed, process_logits(logits.float(), metadata))
    assert processed.dtype == torch.float32
    tokens = sample(logits, metadata)
    assert torch.equal(tokens, sample(logits.float(), metadata_of(batch)))
    assert token_logprobs(logits, tokens, metadata) == token_logprobs(logits.float(), tokens, metadata)


def test_a_row_whose_token_is_dropped_draws_nothing_and_has_no_record() -> None:
    batch = [Row(SamplingParams(seed=5, logprobs=1)), Row(SamplingParams(seed=6, logprobs=1))]
    logits, metadata = logits_of(batch), metadata_of(batch)
    discard = np.array([True, False])
    first, second = metadata.generators[0].get_state(), metadata.generators[1].get_state()
    tokens = sample(logits, metadata, discard)
    assert torch.equal(metadata.generators[0].get_state(), first)
    assert not torch.equal(metadata.generators[1].get_state(), second)
    assert token_logprobs(logits, tokens, metadata, discard).keys() == {1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_skipping_draws_brings_a_generator_to_where_sampling_leaves_it(dtype: torch.dtype) -> None:
    metadata = metadata_of([Row(SamplingParams(seed=5))])
    for _ in range(3):
        sample(logits_of([Row()]).to(dtype), metadata)
    skipped = torch.Generator().manual_seed(5)
    skip_draws(skipped, 3, VOCAB, dtype)
    assert torch.equal(skipped.get_state(), metadata.generators[0].get_state())


# --- a row that the rules leave nothing -----------------------------------------------------------------------


def logits_with(*values: float) -> Tensor:
    return torch.tensor([values, [0.0] * (len(values) - 1) + [1.0]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_rules_contradict_each_other_allowed_ids_alone_count(temperature: float) -> None:
    """After 1, both allowed tokens would end a bad word: the likelier is taken, and the row below is as ever."""
    params = SamplingParams(
        temperature=temperature, seed=1, top_k=1, allowed_token_ids=(1, 2), bad_words_token_ids=((1, 1), (1, 2))
    )
    batch = [Row(params, output=(1,)), Row(SamplingParams(temperature=temperature, seed=1, top_k=1))]
    metadata = metadata_of(batch, vocab_size=4)
    assert sample(logits_with(9, 1, 2, 3), metadata).tolist() == [2, 3]


def test_a_mask_that_forbids_everything_counts_for_nothing() -> None:
    mask = torch.tensor([[True] * 4, [False] * 4])
    assert sample(logits_with(1, 9, 2, 3), SamplingMetadata(allowed_token_ids_mask=mask)).tolist() == [1, 3]


# --- bad words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "output", "forbidden"),
    [
        ((5,), (), True),
        ((5,), (5, 5), True),
        ((4, 5), (4,), True),
        ((4, 5), (4, 6), False),  # broken off
        ((4, 5), (), False),
        ((3, 4, 5), (3, 4), True),
        ((3, 4, 5), (4,), False),  # the output is shorter than what must come before
        ((1, 5), (), False),  # the prompt ends with 1, and does not count, as in vLLM
        ((0, 1, 5), (1,), False),  # nor does a beginning in it
    ],
)
def test_the_last_token_of_a_bad_word_is_forbidden_while_the_output_ends_with_the_rest(
    word: tuple[int, ...], output: tuple[int, ...], forbidden: bool
) -> None:
    params = dataclasses.replace(GREEDY, bad_words_token_ids=(word,))
    row = Row(params, prompt=(0, 1), output=output)
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 9.0
    assert (sample(logits, metadata_of([row])).item() != 5) == forbidden


# --- top-k and top-p ------------------------------------------------------------------------------------------


def test_all_tokens_as_likely_as_the_kth_stay() -> None:
    logits = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]]).repeat(400, 1)
    metadata = SamplingMetadata(temperature=torch.ones(400), top_k=torch.full((400,), 2, dtype=torch.int32))
    assert set(sample(logits, metadata).tolist()) == {0, 1, 2, 3}


def test_where_top_p_cuts_between_equals_lower_ids_stay() -> None:
    logits = torch.zeros(400, 4)
    metadata = SamplingMetadata(temperature=torch.ones(400), top_p=torch.full((400,), 0.4))
    assert set(sample(logits, metadata).tolist()) == {0, 1}


# --- log-probabilities ----------------------------------------------------------------------------------------


@given(batch=batches)
@settings(max_examples=60, deadline=None)
def test_logprobs_are_those_of_the_raw_logits(batch: list[Row]) -> None:
    logits, metadata = logits_of(batch), metadata_of(batch)
    tokens = sample(logits, metadata)
    records = token_logprobs(logits, tokens, metadata)
    assert records.keys() == {index for index, row in enumerate(batch) if row.params.logprobs is not None}
    for index, record in records.items():
        wanted = batch[index].params.logprobs
        logprob, rank, top = reference_logprobs(
            batch[index].logits, int(tokens[index]), VOCAB if wanted == -1 else wanted or 0
        )
        assert record.token_id == tokens[index]
        assert record.logprob == pytest.approx(logprob)
        assert record.rank == rank
        assert [token for token, _ in record.top] == [token for token, _ in top]
        assert [value for _, value in record.top] == pytest.approx([value for _, value in top])
        if wanted == -1:
            assert sum(math.exp(value) for _, value in record.top) == pytest.approx(1)
            assert record.top[record.rank - 1] == (record.token_id, record.logprob)


def test_nobody_who_does_not_ask_pays_for_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, metadata = logits_of([Row()]), metadata_of([Row()])
    tokens = sample(logits, metadata)
    monkeypatch.setattr(torch.Tensor, "log_softmax", None)
    assert token_logprobs(logits, tokens, metadata) == {}


def test_equally_likely_tokens_share_the_last_of_their_ranks() -> None:
    metadata = SamplingMetadata(num_logprobs={0: 1})
    record = token_logprobs(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([0]), metadata)[0]
    assert record.rank == 2  # as many are at least as likely; so in vLLM


# --- on a GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@given(batch=batches)
@settings(max_examples=100, deadline=None)
def test_the_gpu_draws_from_what_the_cpu_draws_from(batch: list[Row]) -> None:
    logits, metadata = logits_of(batch), metadata_of(batch)
    cuda = torch.device("cuda")
    cuda_logits, cuda_metadata = logits.to(cuda), metadata_of(batch, device=cuda)
    ours, theirs = process_logits(cuda_logits, cuda_metadata), process_logits(logits, metadata)
    torch.testing.assert_close(ours.cpu(), theirs)
    torch.testing.assert_close(probabilities(ours, cuda_metadata).cpu(), probabilities(theirs, metadata))
    tokens = sample(cuda_logits, cuda_metadata)
    for index, row in enumerate(batch):
        alone = metadata_of([row], device=cuda)
        assert sample(cuda_logits[index : index + 1], alone)[0] == tokens[index]
    records = token_logprobs(cuda_logits, tokens, cuda_metadata)
    for index, record in token_logprobs(logits, tokens.cpu(), metadata).items():
        assert (records[index].token_id, records[index].rank) == (record.token_id, record.rank)
        assert records[index].logprob == pytest.approx(record.logprob)
        assert [token for token, _ in records[index].top] == [token for token, _ in record.top]


def test_a_row_that_keeps_everything_loses_nothing_to_rounding_beside_a_row_with_top_p() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 50_000) * 4
    alone = probabilities(logits, SamplingMetadata(temperature=torch.ones(1)))
    settings = SamplingMetadata(temperature=torch.ones(2), top_p=torch.tensor([1.0, 0.5]))
    assert torch.equal(probabilities(logits.repeat(2, 1), settings)[:1], alone)
