"""Whoever waits holds nothing: its old block ids go when it is preempted, and when they are found stale."""

import math


def preempt_resume(
    running: list[str],
    waiting: list[str],
    num_prompt_tokens: dict[str, int],
    num_output_tokens: dict[str, int],
    num_computed_tokens: dict[str, int],
    block_ids: dict[str, list[int]],
    free_block_ids: list[int],
    block_size: int,
) -> None:
    num_tokens = {name: num_prompt_tokens[name] + num_output_tokens[name] for name in [*running, *waiting]}
    for request_id in waiting:
        block_ids[request_id] = []

    def missing(request_id: str) -> int:
        return math.ceil(num_tokens[request_id] / block_size) - len(block_ids[request_id])

    def schedule(request_id: str) -> None:
        for _ in range(missing(request_id)):
            block_ids[request_id].append(free_block_ids.pop(0))
        num_computed_tokens[request_id] = num_tokens[request_id]

    num_running = len(running)
    place = 0
    while place < len(running):
        if missing(running[place]) <= len(free_block_ids):
            schedule(running[place])
            place += 1
        else:
            victim = running.pop()
            waiting.insert(0, victim)
            free_block_ids[:] = block_ids.pop(victim)[::-1] + free_block_ids
            num_computed_tokens[victim] = 0
    if len(running) == num_running:
        while waiting and missing(waiting[0]) <= len(free_block_ids):
            running.append(waiting.pop(0))
            schedule(running[-1])
