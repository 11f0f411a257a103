from __future__ import annotations

import functools
import inspect

import pytest

from pagedlab.errors import LessonError
from pagedlab.teaching import without


class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.log: list[str] = []

    def pay(self, amount: int) -> int:
        if amount < 0:
            raise ValueError(
                "negative",
            )
        self.balance += amount
        self.log.append("paid")
        self.log.append("told")
        return self.balance

    @staticmethod
    def rate() -> int:
        return 3


def test_a_statement_is_gone_inside_the_block_and_back_after_it() -> None:
    original = Account.pay
    with without(Account.pay, "self.balance += amount"):
        assert Account().pay(5) == 0
    assert Account.pay is original
    assert Account().pay(5) == 5


def test_a_statement_takes_what_is_nested_in_it_along() -> None:
    with without(Account.pay, "if amount < 0:") as source:
        assert Account().pay(-5) == -5
    assert "    # taken out: if amount < 0:\n" in source
    compile(source, "source", "exec")


def test_another_statement_can_stand_instead() -> None:
    with without(Account.pay, "self.balance += amount", instead="self.balance -= amount"):
        assert Account().pay(5) == -5
        assert "self.balance -= amount" in inspect.getsource(Account.pay)


def test_the_code_is_whole_again_after_an_error() -> None:
    original = Account.pay
    with pytest.raises(KeyError), without(Account.pay, "self.balance += amount"):
        raise KeyError
    assert Account.pay is original


@pytest.mark.parametrize(
    ("statement", "message"), [("self.log", "2 statements that start"), ("self.sum = 1", "no statement that starts")]
)
def test_a_statement_must_be_there_exactly_once(statement: str, message: str) -> None:
    with pytest.raises(LessonError, match=message), without(Account.pay, statement):
        pass


def test_only_plain_functions_can_be_broken() -> None:
    def local() -> None:
        pass

    for function in (local, Account.rate, Account().pay, functools.partial(Account.pay), len):
        with pytest.raises(LessonError, match="only those can be broken"), without(function, "pass"):
            pass
    assert Account.rate() == 3
    assert isinstance(inspect.getattr_static(Account, "rate"), staticmethod)
