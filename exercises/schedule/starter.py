"""Share out the token budget of a step. Check it: pagedlab check schedule THIS_FILE."""


def schedule(
    running: list[str],  # requests that have a seat, in their order
    waiting: list[str],  # requests that have none, first come first
    num_tokens: dict[str, int],  # by request: its tokens, prompt and output
    num_computed_tokens: dict[str, int],  # by request: how many of them are computed
    max_num_batched_tokens: int,  # the budget of a step
    max_num_seqs: int,  # how many requests may run
    enable_chunked_prefill: bool,  # whether a waiting prompt may be cut
) -> dict[str, int]:
    """Return how many tokens each request gets in this step; move who is admitted, and count the tokens as computed."""
    raise NotImplementedError("schedule: share out the token budget")
