"""Wrong versions of `preempt_resume`, each named for what its author believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Step:
    """A right step, in parts that can be got wrong."""

    running: list[str]
    waiting: list[str]
    num_prompt_tokens: dict[str, int]
    num_output_tokens: dict[str, int]
    num_computed_tokens: dict[str, int]
    block_ids: dict[str, list[int]]
    free_block_ids: list[int]
    block_size: int
    preempted: list[str] = field(default_factory=list)

    def num_tokens(self, request_id: str) -> int:
        return self.num_prompt_tokens[request_id] + self.num_output_tokens[request_id]

    def num_tokens_of_one_that_waits(self, request_id: str) -> int:
        return self.num_tokens(request_id)

    def missing(self, num_tokens: int, held: list[int]) -> int:
        return max(0, -(-num_tokens // self.block_size) - len(held))

    def take(self, num_blocks: int) -> list[int]:
        taken = self.free_block_ids[:num_blocks]
        del self.free_block_ids[:num_blocks]
        return taken

    def victim(self, request_id: str) -> str:
        return self.running[-1]

    def preempt(self, victim: str) -> None:
        self.running.remove(victim)
        self.preempted.append(victim)
        self.requeue(victim)
        self.give_back(self.block_ids[victim])
        self.forget_computed(victim)

    def requeue(self, victim: str) -> None:
        self.waiting.insert(0, victim)

    def give_back(self, block_ids: list[int]) -> None:
        self.free_block_ids[:0] = reversed(block_ids)

    def forget_computed(self, victim: str) -> None:
        self.num_computed_tokens[victim] = 0

    def run(self) -> None:
        for request_id in list(self.running):
            if request_id in self.preempted:
                continue
            num_missing = self.missing(self.num_tokens(request_id), self.block_ids[request_id])
            while num_missing > len(self.free_block_ids) and request_id not in self.preempted:
                self.preempt(self.victim(request_id))
            if request_id in self.preempted:
                break
            self.block_ids[request_id].extend(self.take(num_missing))
            self.num_computed_tokens[request_id] = self.num_tokens(request_id)

    def admit(self) -> None:
        for request_id in [] if self.preempted else list(self.waiting):
            num_tokens = self.num_tokens_of_one_that_waits(request_id)
            num_blocks = self.missing(num_tokens, [])
            if num_blocks > len(self.free_block_ids):
                if self.goes_on_behind():
                    continue
                break
            self.waiting.remove(request_id)
            self.running.append(request_id)
            self.set_blocks(request_id, self.take(num_blocks))
            self.num_computed_tokens[request_id] = num_tokens

    def goes_on_behind(self) -> bool:
        return False

    def set_blocks(self, request_id: str, new: list[int]) -> None:
        self.block_ids[request_id] = new

    def both_passes(self) -> None:
        self.run()
        self.admit()


def appends_blocks_on_resume(*arguments: Any) -> None:
    """New blocks go behind those that the request has, always."""

    class Step(_Step):
        def set_blocks(self, request_id: str, new: list[int]) -> None:
            self.block_ids[request_id] = [*self.block_ids.get(request_id, []), *new]

    Step(*arguments).both_passes()


def takes_the_old_blocks_for_its_own(*arguments: Any) -> None:
    """Whoever comes back still has its blocks, and lacks only what has been added."""
    step = _Step(*arguments)
    step.run()
    while step.waiting and not step.preempted:
        request_id = step.waiting[0]
        held = step.block_ids.get(request_id, [])
        num_missing = step.missing(step.num_tokens(request_id), held)
        if num_missing > len(step.free_block_ids):
            break
        step.running.append(step.waiting.pop(0))
        step.set_blocks(request_id, held + step.take(num_missing))
        step.num_computed_tokens[request_id] = step.num_tokens(request_id)


def forgets_what_was_generated(*arguments: Any) -> None:
    """A request that waits has its prompt to compute."""

    class Step(_Step):
        def num_tokens_of_one_that_waits(self, request_id: str) -> int:
            return self.num_prompt_tokens[request_id]

    Step(*arguments).both_passes()


def preempts_the_first(*arguments: Any) -> None:
    """The oldest has had the most, so it makes room."""

    class Step(_Step):
        def victim(self, request_id: str) -> str:
            return self.running[0]

    Step(*arguments).both_passes()


def preempts_whoever_lacks_a_block(*arguments: Any) -> None:
    """Whoever finds no block has to wait; nobody else has to do with it."""

    class Step(_Step):
        def victim(self, request_id: str) -> str:
            return request_id

    Step(*arguments).both_passes()


def lets_it_skip_the_step(*arguments: Any) -> None:
    """Whoever finds no block skips this step, and keeps what it has."""

    class Step(_Step):
        def run(self) -> None:
            for request_id in self.running:
                num_missing = self.missing(self.num_tokens(request_id), self.block_ids[request_id])
                if num_missing <= len(self.free_block_ids):
                    self.block_ids[request_id].extend(self.take(num_missing))
                    self.num_computed_tokens[request_id] = self.num_tokens(request_id)

    Step(*arguments).both_passes()


def keeps_the_blocks(*arguments: Any) -> None:
    """Whoever waits runs no more, and that is what makes room."""

    class Step(_Step):
        def give_back(self, block_ids: list[int]) -> None:
            pass

    Step(*arguments).both_passes()


def goes_to_the_end_of_the_queue(*arguments: Any) -> None:
    """Whoever was preempted queues up like everybody else."""

    class Step(_Step):
        def requeue(self, victim: str) -> None:
            self.waiting.append(victim)

    Step(*arguments).both_passes()


def keeps_what_was_computed(*arguments: Any) -> None:
    """What is computed is computed: a request goes on where it was."""

    class Step(_Step):
        def forget_computed(self, victim: str) -> None:
            pass

    Step(*arguments).both_passes()


def frees_in_forward_order(*arguments: Any) -> None:
    """Blocks come back in the order in which they were given out."""

    class Step(_Step):
        def give_back(self, block_ids: list[int]) -> None:
            self.free_block_ids[:0] = block_ids

    Step(*arguments).both_passes()


def looks_behind_the_one_that_does_not_fit(*arguments: Any) -> None:
    """If the first does not fit, somebody behind it may."""

    class Step(_Step):
        def goes_on_behind(self) -> bool:
            return True

    Step(*arguments).both_passes()
