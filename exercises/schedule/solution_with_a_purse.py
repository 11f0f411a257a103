"""The budget is an object that gives and never gives more than it has."""

from dataclasses import dataclass


@dataclass
class Budget:
    left: int

    def give(self, wanted: int) -> int:
        given = min(wanted, self.left)
        self.left -= given
        return given


def schedule(
    running: list[str],
    waiting: list[str],
    num_tokens: dict[str, int],
    num_computed_tokens: dict[str, int],
    max_num_batched_tokens: int,
    max_num_seqs: int,
    enable_chunked_prefill: bool,
) -> dict[str, int]:
    budget = Budget(max_num_batched_tokens)
    wanted = {request_id: num_tokens[request_id] - num_computed_tokens[request_id] for request_id in num_tokens}
    shares = {request_id: budget.give(wanted[request_id]) for request_id in running}
    while waiting and budget.left and len(running) != max_num_seqs:
        request_id = waiting[0]
        if wanted[request_id] > budget.left and not enable_chunked_prefill:
            break
        shares[request_id] = budget.give(wanted[request_id])
        running.append(waiting.pop(0))
    for request_id, share in shares.items():
        num_computed_tokens[request_id] += share
    return {request_id: share for request_id, share in shares.items() if share}
