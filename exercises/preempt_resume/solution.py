"""Two passes, as vLLM has them."""


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
    def num_tokens(request_id: str) -> int:
        return num_prompt_tokens[request_id] + num_output_tokens[request_id]

    def take(num_blocks: int) -> list[int]:
        taken = free_block_ids[:num_blocks]
        del free_block_ids[:num_blocks]
        return taken

    preempted = []
    index = 0
    while index < len(running):
        request_id = running[index]
        num_missing = -(-num_tokens(request_id) // block_size) - len(block_ids[request_id])
        while num_missing > len(free_block_ids):
            victim = running.pop()
            waiting.insert(0, victim)
            free_block_ids[:0] = reversed(block_ids[victim])
            num_computed_tokens[victim] = 0
            preempted.append(victim)
            if victim == request_id:
                break
        if request_id in preempted:
            break
        block_ids[request_id] += take(num_missing)
        num_computed_tokens[request_id] = num_tokens(request_id)
        index += 1
    while waiting and not preempted:
        request_id = waiting[0]
        num_blocks = -(-num_tokens(request_id) // block_size)
        if num_blocks > len(free_block_ids):
            break
        running.append(waiting.pop(0))
        block_ids[request_id] = take(num_blocks)
        num_computed_tokens[request_id] = num_tokens(request_id)
