"""One queue: the running requests, then as many waiting ones as there are free seats. It ends where a grant fails."""


def schedule(
    running: list[str],
    waiting: list[str],
    num_tokens: dict[str, int],
    num_computed_tokens: dict[str, int],
    max_num_batched_tokens: int,
    max_num_seqs: int,
    enable_chunked_prefill: bool,
) -> dict[str, int]:
    granted: dict[str, int] = {}
    num_running = len(running)
    for place, request_id in enumerate(running + waiting[: max(0, max_num_seqs - num_running)]):
        left = max_num_batched_tokens - sum(granted.values())
        wanted = num_tokens[request_id] - num_computed_tokens[request_id]
        may_be_cut = place < num_running or enable_chunked_prefill
        if left == 0 or (wanted > left and not may_be_cut):
            break
        granted[request_id] = min(wanted, left)
    admitted = list(granted)[num_running:]
    running += admitted
    del waiting[: len(admitted)]
    for request_id in granted:
        num_computed_tokens[request_id] += granted[request_id]
    return granted
