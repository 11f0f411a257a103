"""Refill the seats of the batch. Check it: pagedlab check refill_seats THIS_FILE."""


def refill_seats(
    running: list[str],  # requests that have a seat, in the order in which they got it
    waiting: list[str],  # requests that have none, first come first
    finished: set[str],  # those of `running` that ended with the last step
    max_num_seqs: int,  # how many seats there are
) -> None:
    """Let the finished ones go, then give free seats to those who wait."""
    raise NotImplementedError("refill_seats: give the seats of those who have finished to those who wait")
