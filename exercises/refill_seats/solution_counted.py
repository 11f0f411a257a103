"""Count the free seats first, then move that many at once."""


def refill_seats(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    num_free = max_num_seqs - (len(running) - len(finished))
    admitted = waiting[:num_free]
    running[:] = [*(request_id for request_id in running if request_id not in finished), *admitted]
    del waiting[: len(admitted)]
