"""Every example in a docstring does what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import pagedlab
import pagedlab.kernels  # in a checkout it lies elsewhere

MODULES = sorted(
    {module.name for module in pkgutil.walk_packages([*pagedlab.__path__], "pagedlab.")}
    | {module.name for module in pkgutil.walk_packages([*pagedlab.kernels.__path__], "pagedlab.kernels.")}
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_the_modules_that_should_have_examples_have_them() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = {
        name for name in MODULES if any(test.examples for test in finder.find(importlib.import_module(name)))
    }
    assert {"pagedlab.kernels.slot_mapping", "pagedlab.scheduling.scheduler", "pagedlab.events"} <= with_examples
