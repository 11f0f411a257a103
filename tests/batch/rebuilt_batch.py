"""The persistent batch as it would be if it were built anew in every step, from a plain list of requests.

Nothing here is kept, moved or patched: whatever `pagedlab.batch.InputBatch` holds after a thousand small changes must
be what `RebuiltBatch` makes of the requests at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch

from pagedlab.batch import BatchUpdate, CachedRequestState, InputBatch, MoveDirection, TableSpec
from pagedlab.batch.row_store import FLOAT_FIELDS, INT_FIELDS
from pagedlab.request import SamplingParams

CPU = torch.device("cpu")
VOCAB = 20
GREEDY = SamplingParams(temperature=0)


@dataclass
class PlainRequest:
    """One request in plain lists; `prompt` None stands for `num_embeds` embeddings."""

    name: str
    prompt: tuple[int, ...] | None
    blocks: list[list[int]]
    params: SamplingParams = GREEDY
    outputs: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    num_computed: int = 0
    lora_id: int = 0
    num_embeds: int = 0

    @property
    def num_prompt(self) -> int:
        return self.num_embeds if self.prompt is None else len(self.prompt)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + len(self.outputs)

    @property
    def tokens(self) -> list[int]:
        """What stands in the row: the ids of a prompt of embeddings are 0."""
        return [*(self.prompt or [0] * self.num_prompt), *self.outputs, *self.drafts]

    def state(self) -> CachedRequestState:
        """Return a worker's state of its own."""
        seed = self.params.seed
        return CachedRequestState(
            self.name,
            self.prompt,
            self.params,
            [list(ids) for ids in self.blocks],
            self.num_computed,
            list(self.outputs),
            None if seed is None else torch.Generator().manual_seed(seed),
            lora_id=self.lora_id,
            prompt_embeds=self.embeds,
        )

    @property
    def embeds(self) -> torch.Tensor | None:
        """Embeddings that no other request has, None where the prompt is token ids."""
        return None if self.prompt is not None else torch.full((self.num_embeds, 2), float(crc32(self.name.encode())))


class RebuiltBatch:
    """Every array of a batch, made from its requests in row order."""

    def __init__(self, requests: Sequence[PlainRequest], tables: Sequence[TableSpec]) -> None:
        self.requests = requests
        self.tables = tables
        self.params = [request.params for request in requests]
        self.req_ids = [request.name for request in requests]

    def rows(self) -> dict[str, list[float]]:
        """Return each field of the row store."""
        return {
            "num_tokens_no_spec": [request.num_tokens for request in self.requests],
            "num_prompt_tokens": [request.num_prompt for request in self.requests],
            "num_computed_tokens": [request.num_computed for request in self.requests],
            "num_accepted_tokens": [1 for _ in self.requests],
            "top_k": [params.top_k if 0 < params.top_k < VOCAB else VOCAB for params in self.params],
            "lora_id": [request.lora_id for request in self.requests],
            **{name: [getattr(params, name) for params in self.params] for name in FLOAT_FIELDS},
        }

    def block_tables(self) -> list[list[list[int]]]:
        """Return the kernel blocks of each group and row."""
        tables = []
        for group, spec in enumerate(self.tables):
            ratio = spec.blocks_per_kv_block
            rows = [request.blocks[group] for request in self.requests]
            tables.append([[block * ratio + part for block in row for part in range(ratio)] for row in rows])
        return tables

    def sets(self) -> dict[str, set[str]]:
        """Return who uses what."""

        def who(uses: Any) -> set[str]:
            return {name for name, params in zip(self.req_ids, self.params, strict=True) if uses(params)}

        return {
            "greedy_reqs": who(lambda p: p.temperature == 0),
            "random_reqs": who(lambda p: p.temperature > 0),
            "top_p_reqs": who(lambda p: p.top_p < 1),
            "top_k_reqs": who(lambda p: 0 < p.top_k < VOCAB),
            "frequency_penalty_reqs": who(lambda p: p.frequency_penalty != 0),
            "presence_penalty_reqs": who(lambda p: p.presence_penalty != 0),
            "repetition_penalty_reqs": who(lambda p: p.repetition_penalty != 1),
            "allowed_token_reqs": who(lambda p: p.allowed_token_ids is not None),
            "penalty_reqs": who(
                lambda p: (p.frequency_penalty, p.presence_penalty, p.repetition_penalty) != (0, 0, 1),
            ),
        }

    def mask(self) -> list[list[bool]]:
        """Return which tokens each row forbids."""
        return [
            [p.allowed_token_ids is not None and token not in p.allowed_token_ids for token in range(VOCAB)]
            for p in self.params
        ]

    def seeds(self) -> dict[int, int]:
        return {row: params.seed for row, params in enumerate(self.params) if params.seed is not None}

    def bad_words(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        return {row: p.bad_words_token_ids for row, p in enumerate(self.params) if p.bad_words_token_ids}

    def num_logprobs(self) -> dict[int, int]:
        """Return how many each row wants."""
        wanted = {row: p.logprobs for row, p in enumerate(self.params) if p.logprobs is not None}
        return {row: VOCAB if count == -1 else count for row, count in wanted.items()}

    def loras(self) -> dict[int, set[str]]:
        used = {request.lora_id for request in self.requests} - {0}
        return {lora: {request.name for request in self.requests if request.lora_id == lora} for lora in used}

    def metadata(self) -> dict[str, Any]:
        """Return the tensors of the sampling metadata as lists."""
        rows, sets = self.rows(), self.sets()
        is_random, penalized = bool(sets["random_reqs"]), bool(sets["penalty_reqs"])
        longest = max((request.num_prompt for request in self.requests), default=0)
        prompts = [request.prompt or [] for request in self.requests]  # embeddings are no tokens
        return {
            "temperature": _floats(rows["temperature"]) if is_random else None,
            "top_p": _floats(rows["top_p"]) if is_random and sets["top_p_reqs"] else None,
            "top_k": rows["top_k"] if is_random and sets["top_k_reqs"] else None,
            "frequency_penalties": _floats(rows["frequency_penalty"]) if penalized else None,
            "presence_penalties": _floats(rows["presence_penalty"]) if penalized else None,
            "repetition_penalties": _floats(rows["repetition_penalty"]) if penalized else None,
            "prompt_token_ids": [[*p, *[VOCAB] * (longest - len(p))] for p in prompts] if penalized else None,
            "allowed_token_ids_mask": self.mask() if sets["allowed_token_reqs"] else None,
            "output_token_ids": [r.outputs for r in self.requests] if penalized or self.bad_words() else [],
        }

    def assert_equals(self, batch: InputBatch) -> None:
        """Compare everything that is live."""
        assert batch.req_ids == self.req_ids
        assert batch.req_id_to_index == {name: row for row, name in enumerate(self.req_ids)}
        assert batch.req_output_token_ids == [request.outputs for request in self.requests]
        assert batch.spec_token_ids == [request.drafts for request in self.requests]
        for row, request in enumerate(self.requests):
            tokens = request.tokens
            assert batch.num_row_tokens(row) == len(tokens)
            assert batch.token_ids[row, : len(tokens)].tolist() == tokens
            if batch.is_token_ids is not None:
                is_token = [request.prompt is not None] * request.num_prompt
                is_token += [True] * (len(tokens) - request.num_prompt)
                assert batch.is_token_ids[row, : len(tokens)].tolist() == is_token
            embeds, expected = batch.req_prompt_embeds.get(row), request.embeds
            assert embeds is expected is None or torch.equal(embeds, expected)  # type: ignore[arg-type]
        assert set(batch.req_prompt_embeds) <= set(range(len(self.requests)))
        for name, values in self.rows().items():
            row_values = getattr(batch.rows, name)[: len(values)]
            assert row_values.tolist() == np.array(values, dtype=row_values.dtype).tolist(), name
        tables = [[table.row(row).tolist() for row in range(len(self.requests))] for table in batch.block_table]
        assert tables == self.block_tables()
        assert not any(table.num_blocks_per_row[len(self.requests) :].any() for table in batch.block_table)
        assert batch.lora_requests == self.loras()
        self._assert_sampling_equals(batch)

    def _assert_sampling_equals(self, batch: InputBatch) -> None:
        sampling = batch.sampling
        for name, members in self.sets().items():
            assert getattr(sampling, name) == members, name
        assert {row: generator.initial_seed() for row, generator in sampling.generators.items()} == self.seeds()
        assert sampling.bad_words_token_ids == self.bad_words()
        by_request = {self.req_ids[row]: count for row, count in self.num_logprobs().items()}
        assert sampling.num_logprobs == by_request
        if sampling.allowed_token_ids_mask is not None:
            mask = sampling.allowed_token_ids_mask.np
            assert mask[: len(self.requests)].tolist() == self.mask()
            assert not mask[len(self.requests) :].any(), "a free row forbids tokens"
        else:
            assert not any(map(any, self.mask()))

    def assert_metadata_equal(self, batch: InputBatch) -> None:
        """Compare what the sampler is told."""
        metadata = batch.sampling_metadata
        for name, values in self.metadata().items():
            ours = getattr(metadata, name)
            if isinstance(ours, torch.Tensor):
                assert ours.dtype == DTYPES[name], name
                ours = ours.tolist()
            assert (list(ours) if name == "output_token_ids" else ours) == values, name
        for row, outputs in enumerate(metadata.output_token_ids):
            assert outputs is batch.req_output_token_ids[row], "the sampler would not see what is appended"
        assert metadata.all_greedy == (not self.sets()["random_reqs"])
        assert {row: generator.initial_seed() for row, generator in metadata.generators.items()} == self.seeds()
        assert metadata.bad_words_token_ids == self.bad_words()
        assert metadata.num_logprobs == self.num_logprobs()
        assert metadata.max_num_logprobs == max(self.num_logprobs().values(), default=None)
        assert metadata.logits_processors == batch.logits_processors


DTYPES: Mapping[str, torch.dtype] = {
    "temperature": torch.float32,
    "top_p": torch.float32,
    "top_k": torch.int32,
    "frequency_penalties": torch.float32,
    "presence_penalties": torch.float32,
    "repetition_penalties": torch.float32,
    "prompt_token_ids": torch.int64,
    "allowed_token_ids_mask": torch.bool,
}

assert {*RebuiltBatch([], []).rows()} == {*INT_FIELDS, *FLOAT_FIELDS}, "a field of the row store is not compared"


def _floats(values: Sequence[float]) -> list[float]:
    """Return values as float32 holds them."""
    return np.array(values, dtype=np.float32).tolist()


class Follower:
    """A logits processor that knows of the batch what updates say, and nothing else: it keeps who is in which row."""

    is_argmax_invariant = True

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}
        self.num_calls = 0
        self.num_updates = 0

    def update_state(self, update: BatchUpdate | None) -> None:
        self.num_calls += 1
        if update is None:
            return
        self.num_updates += 1
        for row in update.removed:
            self.rows.pop(row, None)
        for added in update.added:
            self.rows[added.row] = added.output_token_ids
        for source, target, direction in update.moved:
            if direction is MoveDirection.SWAP:
                self.rows[source], self.rows[target] = self.rows[target], self.rows[source]
            else:
                self.rows[target] = self.rows.pop(source)
        assert set(self.rows) == set(range(update.batch_size))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def assert_follows(self, batch: InputBatch) -> None:
        """The live output lists, which nobody else has, say who it is."""
        assert len(self.rows) == batch.num_reqs
        for row, outputs in self.rows.items():
            assert outputs is batch.req_output_token_ids[row]


# --- small batches ----------------------------------------------------------------------------------------------

FOUR = (TableSpec(4),)
TWO_GROUPS = (TableSpec(4), TableSpec(8, kernel_block_size=4))
MAX_MODEL_LEN = 16


def make_batch(tables: Sequence[TableSpec] = FOUR, **options: Any) -> InputBatch:
    return InputBatch(5, MAX_MODEL_LEN, 16, VOCAB, tables, CPU, **options)


def request(name: str, prompt: tuple[int, ...] | None = (1, 2, 3), groups: int = 1, **fields: Any) -> PlainRequest:
    """A request whose blocks say whose they are."""
    fields.setdefault("blocks", [[ord(name[0]) + group, ord(name[0]) + group + 100] for group in range(groups)])
    if params := fields.pop("params", None):
        fields["params"] = SamplingParams(**{"temperature": 0.0, **params})
    return PlainRequest(name, prompt, **fields)


def filled(*requests: PlainRequest | str, tables: Sequence[TableSpec] = FOUR, **options: Any) -> InputBatch:
    batch = make_batch(tables, **options)
    for one in requests:
        batch.add_request((request(one, groups=len(tables)) if isinstance(one, str) else one).state())
    batch.refresh_metadata()
    return batch


def assert_holds(batch: InputBatch, *requests: PlainRequest, tables: Sequence[TableSpec] = FOUR) -> None:
    RebuiltBatch(requests, tables).assert_equals(batch)
    batch.check_integrity({one.name: one.blocks for one in requests})
