"""Two passes, as vLLM has them."""


def schedule(
    running: list[str],
    waiting: list[str],
    num_tokens: dict[str, int],
    num_computed_tokens: dict[str, int],
    max_num_batched_tokens: int,
    max_num_seqs: int,
    enable_chunked_prefill: bool,
) -> dict[str, int]:
    num_scheduled_tokens: dict[str, int] = {}
    token_budget = max_num_batched_tokens
    for request_id in running:
        if token_budget == 0:
            break
        num_new_tokens = min(num_tokens[request_id] - num_computed_tokens[request_id], token_budget)
        num_scheduled_tokens[request_id] = num_new_tokens
        token_budget -= num_new_tokens
    while waiting and token_budget > 0 and len(running) < max_num_seqs:
        request_id = waiting[0]
        num_new_tokens = num_tokens[request_id] - num_computed_tokens[request_id]
        if not enable_chunked_prefill and num_new_tokens > token_budget:
            break
        num_new_tokens = min(num_new_tokens, token_budget)
        running.append(waiting.pop(0))
        num_scheduled_tokens[request_id] = num_new_tokens
        token_budget -= num_new_tokens
    for request_id, num_new_tokens in num_scheduled_tokens.items():
        num_computed_tokens[request_id] += num_new_tokens
    return num_scheduled_tokens
