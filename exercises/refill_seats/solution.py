"""As the scheduler does it: a new list of those who go on, then one admission after the other."""


def refill_seats(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    running[:] = [request_id for request_id in running if request_id not in finished]
    while waiting and len(running) < max_num_seqs:
        running.append(waiting.pop(0))
