"""Wrong versions of `schedule`, each named for what its author believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Step:
    """A right step, in parts that can be got wrong."""

    running: list[str]
    waiting: list[str]
    num_tokens: dict[str, int]
    num_computed_tokens: dict[str, int]
    budget: int
    max_num_seqs: int
    enable_chunked_prefill: bool
    granted: dict[str, int] = field(default_factory=dict)

    def wants(self, request_id: str) -> int:
        return self.num_tokens[request_id] - self.num_computed_tokens[request_id]

    def grant(self, request_id: str, wanted: int) -> None:
        self.granted[request_id] = min(wanted, self.budget)
        self.budget -= self.granted[request_id]

    def run(self, requests: list[str]) -> None:
        for request_id in requests:
            if self.budget > 0:
                self.grant(request_id, self.wants(request_id))

    def admit(self) -> None:
        while self.waiting and self.budget > 0 and len(self.running) < self.max_num_seqs:
            if not self.may_come_in(self.waiting[0]):
                break
            self.admit_first()

    def may_come_in(self, request_id: str) -> bool:
        return self.enable_chunked_prefill or self.wants(request_id) <= self.budget

    def admit_first(self) -> None:
        request_id = self.waiting.pop(0)
        self.running.append(request_id)
        self.grant(request_id, self.wants(request_id))

    def count(self) -> dict[str, int]:
        for request_id, num_new_tokens in self.granted.items():
            self.num_computed_tokens[request_id] += num_new_tokens
        return self.granted

    def both_passes(self) -> dict[str, int]:
        self.run(self.running)
        self.admit()
        return self.count()


def waiting_ones_first(*arguments: Any) -> dict[str, int]:
    """Prefill first: whoever is new gets the budget, and those who decode share what is left."""
    step = _Step(*arguments)
    were_running = list(step.running)
    step.admit()
    step.run(were_running)
    return step.count()


def never_looks_at_the_budget(*arguments: Any) -> dict[str, int]:
    """Each gets what it wants: a step is as long as it must be."""

    class Step(_Step):
        def grant(self, request_id: str, wanted: int) -> None:
            self.granted[request_id] = wanted

        def may_come_in(self, request_id: str) -> bool:
            return True

    return Step(*arguments).both_passes()


def a_budget_for_each(*arguments: Any) -> dict[str, int]:
    """Nobody gets more than `max_num_batched_tokens`: that is the limit of a request."""

    class Step(_Step):
        def grant(self, request_id: str, wanted: int) -> None:
            self.granted[request_id] = min(wanted, self.budget)

    return Step(*arguments).both_passes()


def a_budget_for_each_pass(*arguments: Any) -> dict[str, int]:
    """Decodes and prompts have a budget each: the waiting pass starts with a full one."""
    step = _Step(*arguments)
    budget = step.budget
    step.run(step.running)
    step.budget = budget
    step.admit()
    return step.count()


def cuts_though_chunks_are_off(*arguments: Any) -> dict[str, int]:
    """A prompt that does not fit gets what is left, always."""

    class Step(_Step):
        def may_come_in(self, request_id: str) -> bool:
            return True

    return Step(*arguments).both_passes()


def never_cuts_a_prompt(*arguments: Any) -> dict[str, int]:
    """A prompt is computed in one piece or not at all."""

    class Step(_Step):
        def may_come_in(self, request_id: str) -> bool:
            return self.wants(request_id) <= self.budget

    return Step(*arguments).both_passes()


def looks_behind_the_long_prompt(*arguments: Any) -> dict[str, int]:
    """If the first does not fit, somebody behind it may."""
    step = _Step(*arguments)
    step.run(step.running)
    for request_id in list(step.waiting):
        if step.budget > 0 and len(step.running) < step.max_num_seqs and step.may_come_in(request_id):
            step.waiting.remove(request_id)
            step.running.append(request_id)
            step.grant(request_id, step.wants(request_id))
    return step.count()


def forgets_the_seats(*arguments: Any) -> dict[str, int]:
    """As long as there is budget, somebody else can come in."""
    step = _Step(*arguments)
    step.max_num_seqs = len(step.running) + len(step.waiting)
    return step.both_passes()


def running_means_one_token(*arguments: Any) -> dict[str, int]:
    """Whoever runs decodes, so it gets one token."""
    step = _Step(*arguments)
    for request_id in step.running:
        if step.budget > 0:
            step.grant(request_id, 1)
    step.admit()
    return step.count()


def forgets_what_is_computed(*arguments: Any) -> dict[str, int]:
    """A request wants `num_tokens` tokens."""

    class Step(_Step):
        def wants(self, request_id: str) -> int:
            return self.num_tokens[request_id]

    return Step(*arguments).both_passes()


def lists_those_who_get_nothing(*arguments: Any) -> dict[str, int]:
    """Each that runs has an entry, and 0 is a number too."""
    step = _Step(*arguments)
    for request_id in step.running:
        step.grant(request_id, step.wants(request_id))
    step.admit()
    return step.count()


def counts_later(*arguments: Any) -> dict[str, int]:
    """Tokens are computed when the model has run, so they are not counted here."""
    step = _Step(*arguments)
    step.run(step.running)
    step.admit()
    return step.granted
