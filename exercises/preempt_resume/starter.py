"""Preempt and resume while blocks run short. Check it: pagedlab check preempt_resume THIS_FILE."""


def preempt_resume(
    running: list[str],  # requests that run, in their order: the last one came last
    waiting: list[str],  # requests that wait, the next one first
    num_prompt_tokens: dict[str, int],  # by request
    num_output_tokens: dict[str, int],  # by request: what it has generated so far
    num_computed_tokens: dict[str, int],  # by request: how many tokens have their keys and values in memory
    block_ids: dict[str, list[int]],  # by request: its blocks; stale for one that waits
    free_block_ids: list[int],  # the next one first
    block_size: int,  # tokens in a block
) -> None:
    """Schedule one step: give blocks to those who run, preempt if there are too few, then admit from those who wait."""
    raise NotImplementedError("preempt_resume: schedule a step in which blocks may run short")
