"""The running example of the course."""

from __future__ import annotations

from pagedlab.scheduling.static import StaticBatchScheduler
from pagedlab.teaching import PEOPLE, lessons_directory, serve


def test_seven_people_are_served_in_twelve_steps_and_four_by_a_server_that_does_not_refill_seats() -> None:
    continuous, static = serve(), serve(scheduler_cls=StaticBatchScheduler)
    assert continuous.trace.num_steps == max(length for _, length in PEOPLE.values()) == 12
    assert {name: len(text) for name, text in continuous.texts.items()} == {n: k for n, (_, k) in PEOPLE.items()}
    assert static.texts == continuous.texts
    assert static.trace.num_steps == 12 + max(PEOPLE[name][1] for name in "EFG")


def test_lesson_00_has_three_of_them() -> None:
    text = (lessons_directory() / "source" / "00-one-step.md").read_text(encoding="utf-8")
    three = {name: PEOPLE[name] for name in "ABC"}
    assert f"people = {three}".replace("'", '"') in text
