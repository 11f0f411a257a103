"""All who want a seat stand in one line; the seats are its beginning."""


def refill_seats(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    line = list(filter(lambda request_id: request_id not in finished, running + waiting))
    running[:], waiting[:] = line[:max_num_seqs], line[max_num_seqs:]
