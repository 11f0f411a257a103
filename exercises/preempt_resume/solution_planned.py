"""Work out first who can stay: whoever runs, minus as many from the end as it takes. Then hand out the blocks."""


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
    def blocks_for(request_id: str) -> int:
        return (num_prompt_tokens[request_id] + num_output_tokens[request_id] - 1) // block_size + 1

    def grant(request_id: str, held: list[int]) -> None:
        num_new = blocks_for(request_id) - len(held)
        block_ids[request_id] = held + free_block_ids[:num_new]
        del free_block_ids[:num_new]
        num_computed_tokens[request_id] = num_prompt_tokens[request_id] + num_output_tokens[request_id]

    before = list(running)
    for place, request_id in enumerate(before):
        if place >= len(running):
            break
        while running[place:] and blocks_for(request_id) - len(block_ids[request_id]) > len(free_block_ids):
            free_block_ids[:0] = block_ids[running.pop()][::-1]
        if running[place:]:
            grant(request_id, block_ids[request_id])
    preempted = before[len(running) :]
    waiting[:0] = preempted
    num_computed_tokens.update(dict.fromkeys(preempted, 0))
    while not preempted and waiting and blocks_for(waiting[0]) <= len(free_block_ids):
        running.append(waiting.pop(0))
        grant(running[-1], [])
