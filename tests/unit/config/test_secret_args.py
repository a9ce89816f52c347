"""Secrets among a job's args are refused by name: args are kept with all that a run makes."""

import dataclasses
import os
from typing import Any, Self

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    field_serializer,
    model_validator,
)

from trainflow.config import ResolvedEntrypoint
from trainflow.errors import ConfigError

VALUE = "hf_0123456789"


class Hub(BaseModel):
    token: SecretStr | None = None
    url: str = "https://hub"

    @model_validator(mode="after")
    def ask_the_environment(self) -> Self:
        if self.token is None and "TRAINFLOW_TEST_TOKEN" in os.environ:
            self.token = SecretStr(os.environ["TRAINFLOW_TEST_TOKEN"])
        return self


class Tokens(RootModel[list[SecretStr]]):
    pass


@dataclasses.dataclass
class Login:
    name: str
    password: SecretStr = dataclasses.field(default_factory=lambda: SecretStr(VALUE))


class Args(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    __pydantic_extra__: dict[str, SecretStr] = Field(init=False)

    token: SecretStr | None = None
    key: SecretBytes = Field(default=SecretBytes(VALUE.encode()), alias="access-key")
    pin: Secret[int] | None = None
    other: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("other", AliasPath("more", 0))
    )
    hub: Hub = Hub()
    hubs: list[Hub] = []
    by_name: dict[str, Hub] = {}
    tokens: Tokens = Tokens([])
    login: Login | None = None
    pair: tuple[SecretStr | None, int] = (None, 0)
    lr: float = 0.5


class OpenArgs(Args):
    model_config = ConfigDict(extra="allow")


def entrypoint(model: type[BaseModel] = OpenArgs) -> ResolvedEntrypoint:
    return ResolvedEntrypoint("jobs.x:train", lambda _session, _args: None, model)


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ({"token": VALUE}, "token"),
        ({"key": VALUE}, "key"),
        ({"access-key": VALUE}, "key"),
        ({"pin": 1234}, "pin"),
        ({"other": VALUE}, "other"),
        ({"more": [VALUE]}, "other"),
        ({"hub": {"token": VALUE}}, "hub.token"),
        ({"hubs": [{}, {"token": VALUE}]}, "hubs.1.token"),
        ({"by_name": {"a": {"token": VALUE}}}, "by_name.a.token"),
        ({"tokens": [VALUE]}, "tokens.0"),
        ({"login": {"name": "me", "password": VALUE}}, "login.password"),
        ({"pair": [VALUE, 1]}, "pair.0"),
        ({"unknown": VALUE}, "unknown"),
    ],
)
def test_a_secret_that_a_job_gives_is_refused(args: dict[str, Any], name: str):
    with pytest.raises(ConfigError) as refusal:
        entrypoint().refuse_secrets(args)
    assert str(refusal.value) == (
        f"jobs.x:train: args.{name}: got a secret; expected none, since args are kept with every "
        "checkpoint and record; give it by runtime_env.env_vars and read os.environ"
    )


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"token": None, "pin": None, "tokens": [], "pair": [None, 1], "hubs": [{"token": None}]},
        {"token": "", "key": ""},
        {"login": {"name": "me"}, "hub": {"url": "x"}, "hubs": [{}], "by_name": {"a": {}}},
    ],
)
def test_one_without_a_value_or_of_the_job_s_own_code_is_none(
    args: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    entrypoint().refuse_secrets(args)
    monkeypatch.setenv("TRAINFLOW_TEST_TOKEN", VALUE)
    entrypoint().refuse_secrets(args)


class Revealing(BaseModel):
    token: SecretStr = SecretStr(VALUE)

    @field_serializer("token")
    def reveal(self, token: SecretStr) -> str:
        return token.get_secret_value()


def test_a_default_that_is_a_secret_is_not_filled_in_however_a_model_writes_it():
    assert entrypoint(Revealing).fill_args({}) is None
    assert entrypoint(Hub).fill_args({}) == {"token": None, "url": "https://hub"}
