"""A line of code in a distributed program must know its room.

A module that starts a thread or a process, or is an actor, says in its docstring where it runs.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STARTERS = {"ray.remote", "threading.Thread", "subprocess.Popen", "multiprocessing.Process"}


def dotted_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def is_silent_about_its_room(source: str) -> bool:
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return not STARTERS.isdisjoint(dotted_names(source)) and "Process:" not in docstring


@pytest.mark.parametrize("path", sorted((ROOT / "trainflow").rglob("*.py")), ids=lambda p: p.stem)
def test_a_module_that_starts_something_says_where_it_runs(path: Path):
    assert not is_silent_about_its_room(path.read_text(encoding="utf-8"))


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "trainflow").rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_silence_is_seen():
    assert is_silent_about_its_room('"""Start it."""\nthreading.Thread(target=print).start()\n')
    assert not is_silent_about_its_room('"""Start it.\n\nProcess: any.\n"""\nthreading.Thread()\n')
