"""Wrong versions of `refill_seats`, each named for what its author believed."""

from __future__ import annotations


def _leave(running: list[str], finished: set[str]) -> None:
    running[:] = [request_id for request_id in running if request_id not in finished]


def _admit(running: list[str], waiting: list[str], num_seats: int) -> None:
    while waiting and len(running) < num_seats:
        running.append(waiting.pop(0))


def waits_for_the_whole_batch(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """A batch is a batch: the next one forms when all of this one have finished."""
    _leave(running, finished)
    if not running:
        _admit(running, waiting, max_num_seqs)


def admits_before_freeing(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """Let those in who fit, then let the finished ones out: the order is a matter of taste."""
    _admit(running, waiting, max_num_seqs)
    _leave(running, finished)


def forgets_the_seat_limit(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """Whoever waits is let in: the batch grows as it must."""
    _leave(running, finished)
    _admit(running, waiting, len(running) + len(waiting))


def fills_one_seat_too_many(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """There is room as long as no more than `max_num_seqs` run."""
    _leave(running, finished)
    _admit(running, waiting, max_num_seqs + 1)


def one_for_each_that_left(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """One goes, one comes: a seat that was empty before stays empty."""
    num_seats = len(running)
    _leave(running, finished)
    _admit(running, waiting, num_seats)


def admits_one_a_step(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """One admission is enough: the others come in with the next steps."""
    _leave(running, finished)
    _admit(running, waiting, min(len(running) + 1, max_num_seqs))


def last_come_first(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """`waiting.pop()` takes the next one."""
    _leave(running, finished)
    while waiting and len(running) < max_num_seqs:
        running.append(waiting.pop())


def sits_where_the_other_sat(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """A seat is a place in the list: whoever comes takes exactly the place of the one who left."""
    for place, request_id in enumerate(running):
        if request_id in finished and waiting:
            running[place] = waiting.pop(0)
    _leave(running, finished)
    _admit(running, waiting, max_num_seqs)


def leaves_them_in_the_queue(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """The first ones get a seat; that they wait no more goes without saying."""
    _leave(running, finished)
    _admit(running, list(waiting), max_num_seqs)


def passes_over_a_neighbour(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """Removing from a list while a loop goes through it is fine."""
    for request_id in running:
        if request_id in finished:
            running.remove(request_id)
    _admit(running, waiting, max_num_seqs)


def assigns_a_new_list(running: list[str], waiting: list[str], finished: set[str], max_num_seqs: int) -> None:
    """`running = [...]` changes the list that was passed."""
    running = [request_id for request_id in running if request_id not in finished]
    _admit(running, waiting, max_num_seqs)
