"""An exemption from a check of types is pyright's, and names its rule."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("trainflow", "tests", "jobs", "benchmarks")
OF_ANOTHER_CHECKER = re.compile(r"#\s*type:\s*ignore")
OF_ALL_RULES = re.compile(r"#\s*pyright:\s*ignore(?!\[\w)")


def is_exempt_at_large(line: str) -> bool:
    return bool(OF_ANOTHER_CHECKER.search(line) or OF_ALL_RULES.search(line))


def test_every_exemption_names_its_rule():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if is_exempt_at_large(line)
    ]
    assert found == []


@pytest.mark.parametrize("words", ["type: ignore", "type: ignore[arg-type]", "pyright: ignore"])
def test_those_that_do_not_are_found(words: str):
    assert is_exempt_at_large(f"x = 1  # {words}")
    assert not is_exempt_at_large("x = 1  # pyright: ignore[reportPrivateUsage]  the point")
