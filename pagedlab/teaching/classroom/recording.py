"""Write what a student's copy checks with: the answers of the reference, and fingerprints of those of the mutants.

    write_recording(recording_of(find_exercise("condense")), folder / FILE)

`pagedlab.teaching.exercises.recorded` reads it.

vLLM has no counterpart.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import inspect
import json
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pagedlab.errors import ExerciseError
from pagedlab.teaching.exercises.answers import Answer, TrustedSubject, fingerprint_of
from pagedlab.teaching.exercises.encoding import encode
from pagedlab.teaching.exercises.exercise import RETURNED, Exercise, Inputs
from pagedlab.teaching.exercises.hints import GENERAL
from pagedlab.teaching.exercises.playing import reference_steps
from pagedlab.teaching.exercises.recorded import FORMAT, VERSION, encoded_inputs, key_of, size_of
from pagedlab.teaching.exercises.registry import Entry
from pagedlab.teaching.exercises.searching import Examiner, example_inputs, subject_of
from pagedlab.teaching.exercises.timing import speeds_of, units_of_reference

_SEEDS = (0, 1, 2, 3)
_EXAMPLES = 100
_PLAYED = 80
"""So many of the smallest inputs are recorded line by line: what is shown is the smallest that fails."""


def recording_of(entry: Entry, *, thorough: bool = True) -> dict[str, Any]:
    """Return all that a student's copy needs of an exercise, as JSON-ready data.

    Parameters
    ----------
    entry : Entry
        With its reference and its mutants.
    thorough : bool
        Whether to look for the smallest input on which each mutant is wrong, and to take more random ones: minutes
        for all exercises, in place of seconds.

    Raises
    ------
    ExerciseError
        If its `view` or its `drive` cannot do without the reference.
    """
    exercise = entry.exercise
    topics = {name: opaque(name) for name in entry.mutants} | {GENERAL: GENERAL}
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": exercise.name,
        "lesson": exercise.lesson,
        "title": exercise.title,
        "task": exercise.task,
        "function": exercise.function,
        "signature": str(inspect.signature(exercise.reference)) if not inspect.isclass(exercise.reference) else "",
        "called": exercise.signature,
        "parameters": list(exercise.parameters),
        "changes": list(exercise.changes),
        "form": exercise.form,
        "instead": exercise.instead,
        "limits": asdict(exercise.limits),
        "code": _code_of(exercise),
        "view": exercise.view.__name__ if exercise.view else "",
        "drive": exercise.drive.__name__ if exercise.drive else "",
        "hints": {topics[name]: list(texts) for name, texts in entry.hints.items()},
        "speed": _speed_of(entry, topics),
        "answers": _answers_of(entry, topics, thorough=thorough),
    }


def opaque(mutant: str) -> str:
    """Return what a student's copy calls a misconception: its name would say too much.

    >>> opaque("believes_it")
    'm-789945'
    """
    return f"m-{hashlib.sha256(mutant.encode()).hexdigest()[:6]}"


def write_recording(data: Mapping[str, Any], path: Path) -> None:
    """Write a recording; the same data makes the same file."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _answers_of(entry: Entry, topics: Mapping[str, str], *, thorough: bool) -> list[dict[str, Any]]:
    """Ask the reference and the mutants; the cases come first, then the others, from small to large."""
    exercise = entry.exercise
    mutants = {topics[name]: subject_of(exercise, mutant) for name, mutant in entry.mutants.items()}
    reference = TrustedSubject(exercise, exercise.reference)
    why = {key_of(case.inputs): case.why for case in exercise.cases}
    pool = {key_of(inputs): inputs for inputs in _inputs_of(entry, thorough=thorough)}
    size = {key: size_of(encoded_inputs(inputs)) for key, inputs in pool.items()}
    keys = [*why, *sorted(pool.keys() - why.keys(), key=lambda key: (size[key], key))]
    played = set(sorted(keys, key=lambda key: size[key])[:_PLAYED]) if exercise.watched else set()
    return [
        {
            "key": key,
            "why": why.get(key, ""),
            "inputs": encoded_inputs(pool[key]),
            "answer": _answer_to_json(exercise, reference.answer(pool[key])),
            "steps": [step.state for step in reference_steps(exercise, pool[key])] if key in played else [],
            "prints": {topic: fingerprint_of(exercise, mutant.answer(pool[key])) for topic, mutant in mutants.items()},
        }
        for key in keys
    ]


def _inputs_of(entry: Entry, *, thorough: bool) -> Iterator[Inputs]:
    """Yield the cases, some random inputs, and the smallest inputs on which each mutant is wrong."""
    exercise = entry.exercise
    yield from (case.inputs for case in exercise.cases)
    for seed in _SEEDS if thorough else _SEEDS[:1]:
        yield from example_inputs(exercise, seed, _EXAMPLES)
    for mutant in entry.mutants.values() if thorough else ():
        if (finding := Examiner(exercise, subject_of(exercise, mutant)).examine(_SEEDS[0])) is not None:
            yield finding.inputs


def _speed_of(entry: Entry, topics: Mapping[str, str]) -> dict[str, Any] | None:
    speed = entry.exercise.speed
    if speed is None:
        return None
    return {
        "times": speed.times,
        "cases": [{"why": case.why, "inputs": encoded_inputs(case.inputs)} for case in speed.cases],
        "units": units_of_reference(entry.exercise),
        "mutants": {topics[name]: times for name, times in speeds_of(entry).items()},
    }


def _code_of(exercise: Exercise) -> str:
    """Return the definitions that `view` and `drive` use, directly or through others, in their order."""
    wanted = {function.__name__ for function in (exercise.view, exercise.drive) if function is not None}
    if not wanted:
        return ""
    module = sys.modules[exercise.reference.__module__]
    body = ast.parse(inspect.getsource(module)).body
    body = [node for node in body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    homes = {name: node for node in body for name in _defines(node)}
    future = ast.parse("from __future__ import annotations").body  # what only an annotation names is not needed
    kept: set[int] = set()
    while wanted:
        name = wanted.pop()
        if name == exercise.function:
            raise ExerciseError(f"exercise {exercise.name!r}: its view or its drive uses the reference")
        node = homes.get(name)
        if node is None or id(node) in kept:
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ExerciseError(f"exercise {exercise.name!r}: its view or its drive imports from another of its files")
        kept.add(id(node))
        wanted |= _names_in(compile(ast.Module([*future, node], []), "", "exec"))
    return ast.unparse(ast.Module([*future, *(node for node in body if id(node) in kept)], []))


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names of a module, or attributes, that code uses."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names, *(name for part in inner for name in _names_in(part))}


def _defines(node: ast.stmt) -> Iterable[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
        case ast.Assign(targets=targets):
            return [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _answer_to_json(exercise: Exercise, answer: Answer) -> dict[str, Any]:
    if answer.raised is not None:
        return {"raised": answer.raised.type_name}
    values = dict(answer.values(exercise))
    returned = values.pop(RETURNED)
    return {"returned": encode(returned, strict=True), "changed": encoded_inputs(values)}
