"""Finding the training function, and checking args against the function's own model."""

from math import inf
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    computed_field,
)

from trainflow.config import ResolvedEntrypoint, import_function, resolve_entrypoint
from trainflow.errors import ConfigError, EntrypointError

MODULE = """
from __future__ import annotations
from typing import TYPE_CHECKING
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from trainflow import Session

from user_decorators import logged

class Optimizer(BaseModel):
    lr: float = Field(gt=0)

class Args(BaseModel):
    hidden: int
    dropout: float | None = None
    optimizer: Optimizer = Optimizer(lr=0.1)

class OpenArgs(BaseModel):
    model_config = ConfigDict(extra="allow")

def train(session: Session, args: Args) -> None: ...
def train_open(session, args: OpenArgs) -> None: ...
def with_options(session, args: Args, *, verbose: bool = False) -> None: ...
def no_args(session): ...
def three(session, args: Args, more): ...
def keyword_only(session, *, args: Args): ...
def not_annotated(session, args): ...
def plain_dict(session, args: dict): ...
def unknown_annotation(session, args: Missing): ...

@logged
def wrapped(session, args: Args): ...

not_a_function = 3
"""

DECORATORS = """
from functools import wraps

def logged(function):
    @wraps(function)
    def call(*args):
        return function(*args)
    return call
"""


@pytest.fixture(autouse=True)
def user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "user_job.py").write_text(MODULE)
    (tmp_path / "user_decorators.py").write_text(DECORATORS)
    (tmp_path / "broken_job.py").write_text("raise KeyError('boom')\n")
    (tmp_path / "script_job.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "lacking_job.py").write_text("import no_such_library\n")
    (tmp_path / "garbled_job.py").write_text("def train(:\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("name", ["train", "with_options", "wrapped"])
def test_a_training_function_is_found_with_its_args_model(name: str):
    resolved = resolve_entrypoint(f"user_job:{name}")
    assert resolved.function.__module__ == "user_job"
    assert resolved.args_model.__name__ == "Args"


def test_args_become_the_functions_own_model():
    args = resolve_entrypoint("user_job:train").check_args({"hidden": 8, "optimizer": {"lr": 3}})
    assert isinstance(args, BaseModel)
    assert args.model_dump() == {"hidden": 8, "dropout": None, "optimizer": {"lr": 3.0}}


@pytest.mark.parametrize(
    ("spec", "got", "expected"),
    [
        ("user_job", "got 'user_job'", "module:function"),
        (":train", "got ':train'", "module:function"),
        ("no_such_job:train", "ModuleNotFoundError: No module named 'no_such_job'", "imported"),
        ("lacking_job:train", "No module named 'no_such_library'", "imported"),
        ("broken_job:train", "raised KeyError: 'boom'", "imported"),
        ("garbled_job:train", "raised SyntaxError", "imported"),
        ("script_job:train", "raised SystemExit: 0", "below `if __name__"),
        ("user_job:trian", "no such name", "a function in"),
        ("user_job:not_a_function", "a int", "a function in"),
        ("user_job:no_args", "too many positional arguments", "def train(session"),
        ("user_job:three", "missing a required argument: 'more'", "def train(session"),
        ("user_job:keyword_only", "too many positional arguments", "def train(session"),
        ("user_job:not_annotated", "second parameter is 'args'", "a pydantic model"),
        ("user_job:plain_dict", "second parameter is \"args: 'dict'\"", "a pydantic model"),
        ("user_job:unknown_annotation", "Missing", "a pydantic model"),
    ],
)
def test_what_is_no_training_function_is_refused(spec: str, got: str, expected: str):
    with pytest.raises(EntrypointError) as refusal:
        resolve_entrypoint(spec)
    message = str(refusal.value)
    assert message.startswith("entrypoint: got ")
    assert spec in message
    assert got in message
    assert expected in message.partition("; expected ")[2]
    assert "; change entrypoint" in message


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("jobs_of_nobody.x:train", "run from the folder that holds jobs_of_nobody/ "),
        ("no_such_job:train", "run from the folder that holds no_such_job.py "),
    ],
)
def test_a_module_that_is_not_found_may_be_in_another_folder(spec: str, hint: str):
    with pytest.raises(EntrypointError, match=hint):
        resolve_entrypoint(spec)
    with pytest.raises(EntrypointError) as other:
        resolve_entrypoint("lacking_job:train")
    assert "run from" not in str(other.value)


def test_the_message_names_the_setting_that_was_asked_about():
    with pytest.raises(EntrypointError, match=r"^data\.dataset: got .*; change data\.dataset"):
        import_function("user_job:none", setting="data.dataset")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ({}, "args.hidden: got nothing; expected a value; change args.hidden"),
        ({"hidden": "x"}, "args.hidden: got 'x'; expected a valid integer"),
        ({"hidden": 1, "dropout": "x"}, "args.dropout: got 'x'; expected a valid number"),
        (
            {"hidden": 1, "optimizer": {"lr": -1}},
            "args.optimizer.lr: got -1; expected greater than 0; change args.optimizer.lr",
        ),
        (
            {"hidden": 1, "hiden": 2},
            "args.hiden: got an unknown key; expected one of hidden, dropout, optimizer; "
            "remove args.hiden or write args.hidden",
        ),
        ({"hidden": 1, "lr": 2}, "remove args.lr or write args.optimizer.lr"),
        ({"hidden": 1, "optimizer": {"lrr": 2, "lr": 1}}, "or write args.optimizer.lr"),
    ],
)
def test_bad_args_are_refused(args: dict[str, object], line: str):
    with pytest.raises(ConfigError) as refusal:
        resolve_entrypoint("user_job:train").check_args(args)
    assert line in str(refusal.value)


def test_a_model_that_keeps_unknown_args_may():
    args = resolve_entrypoint("user_job:train_open").check_args({"anything": 1})
    assert args.model_dump() == {"anything": 1}


def fill(model: type[BaseModel], **args: object) -> dict[str, object] | None:
    return ResolvedEntrypoint("jobs.x:train", lambda _session, _args: None, model).fill_args(args)


class Nested(BaseModel):
    beta: float = 0.9


class ManyKinds(BaseModel):
    lr: float = Field(default=0.1, alias="rate")
    folder: Path = Path("out")
    pair: tuple[int, ...] = (1, 2)
    optimizer: Nested = Nested()
    sizes: list[int] = Field(default_factory=list)
    name: str = Field(default_factory=lambda: str(uuid4()))

    @computed_field
    @property
    def twice(self) -> float:
        return 2 * self.lr


def test_defaults_are_filled_in_as_json_has_them_but_those_that_a_function_computes():
    defaults = {
        "rate": 0.1,
        "folder": "out",
        "pair": [1, 2],
        "optimizer": {"beta": 0.9},
        "sizes": [],
    }
    assert fill(ManyKinds) == defaults
    assert fill(ManyKinds, **defaults) == defaults
    assert fill(ManyKinds, rate="0.5", name="a") == defaults | {"rate": 0.5, "name": "a"}


class Strict(BaseModel, strict=True):
    pair: tuple[int, int] = (1, 2)


class Secret(BaseModel):
    token: SecretStr = SecretStr("t")


class Infinite(BaseModel):
    best: float = inf


class Doubled(BaseModel):
    lr: Annotated[float, AfterValidator(lambda lr: 2 * lr)] = 0.1


class Split(BaseModel):
    words: Annotated[list[str], BeforeValidator(lambda text: text.split())] = []


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (Strict, {}),
        (Secret, {}),
        (Infinite, {}),
        (Doubled, {"lr": 0.1}),
        (Split, {"words": "a b"}),
    ],
)
def test_args_that_would_be_others_once_written_as_json_are_not_filled_in(
    model: type[BaseModel], args: dict[str, object]
):
    assert fill(model, **args) is None
