"""The variables that a fork is to have."""

import os

import pytest
from ray._private.utils import update_envs

from trainflow.coordination.forkserver.surroundings import (
    apply_changes,
    expand_variables,
    find_changes,
    find_difference,
)


@pytest.mark.parametrize(
    "value",
    ["plain", "$HOME/x", "${HOME}/x", "a${MISSING}b", "a$MISSING", "$", "${lower}", "$EARLIER"],
)
def test_values_are_expanded_as_ray_expands_them(value: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("MISSING", "lower", "NEW", "EARLIER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home")
    variables = {"EARLIER": "1", "NEW": value}
    planned = expand_variables(os.environ, variables)
    update_envs(variables)
    assert planned == dict(os.environ)


def test_environments_are_alike_whatever_started_the_processes():
    one = {"A": "1", "_": "/bin/bash", "SHLVL": "0", "PWD": "/a"}
    assert find_difference(one, {"A": "1", "_": "/bin/python"}) is None


@pytest.mark.parametrize(
    ("before", "wanted"),
    [({"A": "1"}, {"A": "2"}), ({"A": "1"}, {}), ({}, {"A": "2"}), ({"Z": "1"}, {"A": "2"})],
)
def test_a_variable_that_differs_is_named(before: dict[str, str], wanted: dict[str, str]):
    assert find_difference(before, wanted) == "A"


def test_changes_are_what_is_new_other_or_gone_and_can_be_made_elsewhere():
    changes = find_changes({"A": "1", "B": "1", "C": "1"}, {"A": "1", "B": "2", "D": "1"})
    assert changes == {"B": "2", "C": None, "D": "1"}
    assert apply_changes({"C": "3", "E": "1"}, changes) == {"B": "2", "D": "1", "E": "1"}
