"""The names that users touch, and the ones that nobody should have to read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainflow

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trainflow"

# Adding or removing a line here is a change of the public interface: it needs an ADR.
PUBLIC_NAMES = ["Batch", "Committed", "Session", "Step", "StepAborted"]

# Words that say nothing about what a thing does.
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "data2"}
EMPTY_VERBS = ("handle_", "process_")

# Terms of the libraries below us that contain an empty word or verb.
TERMS_OF_ART = ("process_group",)


def test_the_public_names_are_these():
    assert sorted(trainflow.__all__) == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_public_name_can_be_imported(name: str):
    assert getattr(trainflow, name).__name__ == name


def test_no_other_name_can_be_imported():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = trainflow.no_such_name


def defined_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def says_nothing(name: str) -> bool:
    """Whether a name is, or is made of, a word that means anything."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().lstrip("_")
    for term in TERMS_OF_ART:
        snake = snake.replace(term, "")
    return snake.startswith(EMPTY_VERBS) or not EMPTY_WORDS.isdisjoint(snake.split("_"))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_names_say_what_they_stand_for(path: Path):
    names = [*path.relative_to(ROOT).with_suffix("").parts, *defined_names(path.read_text())]
    assert [name for name in names if says_nothing(name)] == []


@pytest.mark.parametrize(
    "name", ["utils", "GroupManager", "_handle_failure", "process_batch", "file_helper"]
)
def test_an_empty_name_is_seen(name: str):
    assert says_nothing(name)


@pytest.mark.parametrize("name", ["Keeper", "process_group", "commonality", "managed"])
def test_a_telling_name_passes(name: str):
    assert not says_nothing(name)
