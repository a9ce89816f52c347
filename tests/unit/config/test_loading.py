"""From a file, the environment and options to a configuration, or to all that is wrong with it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.config.odd_yaml import NO_VALUES
from trainflow.config import load_job
from trainflow.config.problems import Problem
from trainflow.config.sources import Override, parse_yaml, read_options
from trainflow.errors import ConfigError

YAML = """
name: pretrain-lm
entrypoint: jobs.pretrain_lm:train
args: {lr: 3e-4, hidden: 64}
training: {max_steps: 10, global_batch_size: 8, microbatch_size: 2, clip_norm: 1e0}
data: {url: "file:///corpus"}
workers: {minimum: 1, target: 2}
"""

TOML = """
name = "pretrain-lm"
entrypoint = "jobs.pretrain_lm:train"
args = {lr = 3e-4, hidden = 64}
training = {max_steps = 10, global_batch_size = 8, microbatch_size = 2, clip_norm = 1e0}
data = {url = "file:///corpus"}
workers = {minimum = 1, target = 2}
"""

DEEP = "[" * 20_000

WriteJob = Callable[[str], Path]


@pytest.fixture
def write_job(tmp_path: Path) -> WriteJob:
    def write(text: str, name: str = "job.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal_of(path: Path, *options: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        load_job(path, options, environment)
    return str(refusal.value)


def test_yaml_and_toml_say_the_same(write_job: Any):
    from_yaml = load_job(write_job(YAML), env={})
    assert from_yaml == load_job(write_job(TOML, "job.toml"), env={})
    assert from_yaml.args == {"lr": 3e-4, "hidden": 64}


def test_options_win_over_the_environment_and_that_over_the_file(write_job: WriteJob):
    environment = {"TRAINFLOW__TRAINING__SEED": "1", "TRAINFLOW__TRAINING__MAX_STEPS": "20"}
    config = load_job(write_job(YAML), ["training.max_steps=30"], environment)
    assert (config.training.max_steps, config.training.seed) == (30, 1)
    assert config.training.global_batch_size == 8


def test_the_last_of_two_options_wins(write_job: WriteJob):
    options = ["args.lr=1.0", "args.lr=2.0"]
    assert load_job(write_job(YAML), options, {}).args["lr"] == 2.0


def test_an_override_makes_the_sections_that_lead_to_it(write_job: WriteJob):
    config = load_job(write_job(YAML), ["failures.window_s=5.0", "args.model.depth=3"], {})
    assert config.failures.window_s == 5.0
    assert config.args["model"] == {"depth": 3}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("-1.5E+3", -1500.0),
        (".5", 0.5),
        ("7", 7),
        ("4_194_304", 4194304),
        ("0x10", 16),
        ("010", 10),
        ("true", True),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2026-01-02", "2026-01-02"),
        ("'3e-4'", "3e-4"),
        ("1e", "1e"),
        ("null", None),
        ("", None),
        ("[1, 2e0]", [1, 2.0]),
        ("{a: 1}", {"a": 1}),
        ("file:///corpus", "file:///corpus"),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_read_as_yaml_1_2(text: str, value: object, write_job: WriteJob):
    from_option = load_job(write_job(YAML), [f"args.x={text}"], {}).args["x"]
    from_environment = load_job(write_job(YAML), env={"TRAINFLOW__ARGS__X": text}).args["x"]
    assert from_option == from_environment == value
    assert type(from_option) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_back_as_itself(number: float):
    assert parse_yaml(repr(number)) == number
    assert isinstance(parse_yaml(f"{number:e}"), float)


@given(st.integers())
def test_every_integer_is_read_back_as_itself(number: int):
    assert parse_yaml(str(number)) == number


def test_infinity_and_not_a_number_have_a_spelling():
    assert parse_yaml("[.inf, -.inf]") == [math.inf, -math.inf]
    assert math.isnan(float(str(parse_yaml(".nan"))))


def test_a_value_may_stand_a_hundred_levels_deep():
    assert parse_yaml(f"{'[' * 100}{']' * 100}") is not None
    with pytest.raises(yaml.YAMLError, match="nested too deeply"):
        parse_yaml(f"{'[' * 101}{']' * 101}")


def test_a_text_is_read_no_further_than_to_where_it_is_too_much():
    lines = "".join(f"k{n}: [1]\n" for n in range(5))
    assert parse_yaml(lines, most_values=16) == {f"k{n}": [1] for n in range(5)}
    wrong_later = f"{lines}: : :\n"
    with pytest.raises(yaml.YAMLError, match="more than 7 values"):
        parse_yaml(wrong_later, most_values=7)
    with pytest.raises(yaml.YAMLError, match="nested too deeply"):
        parse_yaml("[" * 101 + "}")


_CORE = ["null", "bool", "int", "float", "str", "seq", "map"]
_BEYOND = ["set", "omap", "pairs", "binary", "timestamp", "merge", "value"]


def _tagged(node: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    tags = st.sampled_from(["", "!mine ", "&a ", "! ", *(f"!!{kind} " for kind in _CORE + _BEYOND)])
    return st.builds("{}{}".format, tags, node)


_TEXTS = st.sampled_from(["", "''", "foo", "yes", "0x", "1:2:3", "010", ".nan", "<<", "=", "*a"])
_NODES = st.recursive(
    _tagged(_TEXTS | st.text("ab01:-_.eE~'\"\\UN*&!%?", max_size=12)),
    lambda node: _tagged(
        st.lists(node, max_size=3).map(lambda each: f"[{', '.join(each)}]")
        | st.lists(st.tuples(node, node), max_size=3).map(
            lambda each: f"{{{', '.join(f'? {key} : {value}' for key, value in each)}}}"
        )
    ),
    max_leaves=8,
)


@given(_NODES)
@example("%YAML 9.9\n--- a")
def test_any_yaml_is_a_value_as_json_has_them_or_a_problem(text: str):
    (found,) = read_options([f"args.x={text}"])
    if isinstance(found, Override):
        assert isinstance(json.dumps(found.value), str)
    else:
        assert isinstance(found, Problem)
        assert found.expected == "a YAML value"


@pytest.mark.parametrize("text", ["!!bool s3cret", "{? s3cret : 1, ? [s3cret] : 2}"])
def test_a_variable_that_cannot_be_read_is_not_shown(text: str, write_job: WriteJob):
    message = refusal_of(write_job(YAML), f"runtime_env.env_vars.KEY={text}")
    assert "got text (" in message
    assert "s3cret" not in message


@pytest.mark.parametrize(
    ("name", "shown"), [("A=s3cret", "'A='"), ("", "''"), ("A\0B", "'A\\x00B'")]
)
def test_a_variable_that_no_environment_can_have_is_refused(
    name: str, shown: str, write_job: WriteJob
):
    job = yaml.safe_load(YAML) | {"runtime_env": {"env_vars": {name: "1", "FINE": "a=b"}}}
    message = refusal_of(write_job(yaml.safe_dump(job)))
    assert f"runtime_env.env_vars: got the name {shown}; expected a name that" in message
    assert "s3cret" not in message


def test_a_value_that_no_environment_can_have_is_refused_and_not_shown(write_job: WriteJob):
    job = yaml.safe_load(YAML) | {"runtime_env": {"env_vars": {"KEY": "s3cret\0", "FINE": "1"}}}
    message = refusal_of(write_job(yaml.safe_dump(job)))
    assert "runtime_env.env_vars.KEY: got a value with NUL; expected text without NUL" in message
    assert "s3cret" not in message


def test_variables_are_told_by_name(write_job: WriteJob):
    job = yaml.safe_load(YAML) | {"runtime_env": {"env_vars": ["KEY=s3cret"]}}
    message = refusal_of(write_job(yaml.safe_dump(job)))
    assert "runtime_env.env_vars: got a list; expected variables by name" in message
    assert "s3cret" not in message


def test_a_float_in_exponent_notation_fits_a_float_setting(write_job: WriteJob):
    assert load_job(write_job(YAML), ["training.clip_norm=5e-1"], {}).training.clip_norm == 0.5


def test_the_environment_reaches_settings_in_upper_case(write_job: WriteJob):
    config = load_job(write_job(YAML), env={"TRAINFLOW__WORKERS__RESOURCES__CPU": "0.5"})
    assert config.workers.resources.CPU == 0.5


def test_other_variables_are_none_of_our_business(write_job: WriteJob):
    load_job(write_job(YAML), env={"TRAINFLOW_HOME": "/x", "TRAINFLOW": "1", "PATH": "/bin"})


@pytest.mark.parametrize(
    ("name", "text", "got", "expected"),
    [
        ("job.yaml", "name: [", "line 1", "valid yaml"),
        ("job.yaml", "a: 1\nb: 2\na: 3\n", "'a' stands a second time (line 3)", "valid yaml"),
        ("job.yaml", "t:\n  s: 1\n  's': 2\n", "'s' stands a second time (line 3)", "valid yaml"),
        ("job.yaml", "a: !!python/name:os.system\n", "line 1", "valid yaml"),
        ("job.toml", "name = \n", "line 1", "valid toml"),
        ("job.toml", "a = 1\na = 2\n", "line 2", "valid toml"),
        ("job.yaml", "- 1\n- 2\n", "[1, 2]", "a section of keys and values"),
        ("job.yaml", "just text", "'just text'", "a section of keys and values"),
        ("job.json", '{"a": }', "line 1", "valid json"),
        ("job.ini", "{}", "'.ini'", ".yaml, .yml, .toml, .json"),
        ("job", "{}", "''", ".yaml, .yml, .toml"),
        *(("job.yaml", text, got, "valid yaml") for text, got in NO_VALUES.items()),
        ("job.yaml", DEEP, "nested too deeply", "valid yaml"),
        ("job.json", DEEP, "nested too deeply", "valid json"),
        ("job.toml", f"a = {DEEP}", "nested too deeply", "valid toml"),
        ("job.json", f'{{"args": {"[" * 300}{"]" * 300}}}', "nested too deeply", "valid json"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(
    name: str, text: str, got: str, expected: str, write_job: Any
):
    path = write_job(text, name)
    message = refusal_of(path)
    assert message.startswith(f"{path}: the file: got ")
    assert got in message
    assert f"expected {expected}" in message or f"expected a {expected}" in message


def test_a_missing_file_is_named(tmp_path: Path):
    message = refusal_of(tmp_path / "none.yaml")
    assert f"{tmp_path}/none.yaml: the file: got No such file or directory" in message
    assert "check the path" in message


def test_a_folder_is_no_file(tmp_path: Path):
    (tmp_path / "job.yaml").mkdir()
    assert "got Is a directory" in refusal_of(tmp_path / "job.yaml")


def test_text_of_another_encoding_is_refused(tmp_path: Path):
    (tmp_path / "job.yaml").write_bytes(b"name: caf\xe9\n")
    assert "can't decode byte 0xe9" in refusal_of(tmp_path / "job.yaml")


def test_an_empty_file_lacks_everything(write_job: WriteJob):
    message = refusal_of(write_job(""))
    for setting in ("name", "entrypoint", "training", "data", "workers"):
        assert f"{setting}: got nothing; expected a value; change {setting}" in message


def test_every_problem_is_reported_at_once_with_where_it_was_set(write_job: WriteJob):
    path = write_job(YAML.replace("max_steps: 10", "max_steps: ten"))
    message = refusal_of(
        path, "training.seed=-1", "nonsense", "args={", TRAINFLOW__DATA__ORDER="random"
    )
    assert message.startswith("5 problems in the configuration:\n")
    lines = message.splitlines()[1:]
    assert [line.partition(": got ")[0].strip() for line in lines] == [
        "--set: the option",
        "--set args: args",
        f"{path}: training.max_steps",
        "--set training.seed: training.seed",
        "TRAINFLOW__DATA__ORDER: data.order",
    ]
    assert all("; expected " in line and line.count("; ") >= 2 for line in lines)


@pytest.mark.parametrize(
    ("option", "line"),
    [
        (
            "training.max_step=1",
            "training.max_step: got an unknown key; expected one of max_steps, global_batch_size, "
            "batch_scaling, microbatch_size, precision, clip_norm, seed, deterministic, "
            "max_skipped_steps; "
            "remove training.max_step or write training.max_steps",
        ),
        ("max_steps=1", "remove max_steps or write training.max_steps"),
        ("worker.target=1", "remove worker or write workers"),
        ("service.url=x", "service: got an unknown key; expected one of schema_version, "),
        ("workers.resources.gpu=1", "or write workers.resources.GPU"),
        (
            "monitoring.webhook.token=x",
            "monitoring.webhook.token: got an unknown key; expected one of url, url_file, "
            "token_file, topics, timeout_s; remove monitoring.webhook.token",
        ),
        (
            "monitoring.webhook.timeout_s=0",
            "expected greater than 0; change monitoring.webhook.timeout_s: Seconds for which",
        ),
        ("monitoring.webhook={}", "got {}; expected exactly one of url and url_file; change"),
        ("workers=3", "workers: got 3; expected a section of keys and values; change workers"),
        ("args=3", "args: got 3; expected a section of keys and values; change args"),
        ("name.x=1", "--set name.x: name: got {'x': 1}; expected a valid string; change name"),
        ("name=Big Job", "name: got 'Big Job'; expected text that matches ^[a-z0-9]"),
        ("entrypoint=train", "entrypoint: got 'train'; expected module:function, as in"),
        ("failures.hang_timeout_s=soon", "got 'soon'; expected 'auto' or a valid number; change"),
        ("training.precision=fp8", "got 'fp8'; expected 'fp32', 'bf16' or 'fp16'; change"),
        ("training.seed=-1", "got -1; expected greater than or equal to 0; change training.seed"),
        (
            "workers.target=9",
            "training.global_batch_size: got 8; expected at least workers.target = 9",
        ),
        ("workers.target=x", "--set workers.target: workers.target: got 'x'; expected a valid"),
        ("data.url=null", "data: got url = None and dataset = None; expected exactly one of"),
        ("a..b=1", "--set a..b: its name: got 'a..b'; expected section.key=value"),
        ("=1", "its name: got ''; expected section.key=value"),
        ("nonsense", "--set: the option: got 'nonsense'; expected key=value"),
        ("args.x={", "--set args.x: args.x: got '{' ("),
        (f"name={'n' * 500}", f"name: got '{'n' * 79}...; expected"),
    ],
)
def test_a_bad_option_is_refused_with_one_line(option: str, line: str, write_job: WriteJob):
    message = refusal_of(write_job(YAML), option)
    assert line in message
    assert "\n" not in message


@pytest.mark.parametrize("login", ["me:geheim", "me:ge@heim", ":geheim", "geheim"])
def test_a_password_in_an_address_is_not_shown(login: str, write_job: WriteJob):
    message = refusal_of(write_job(YAML), f"monitoring.webhook.url=https://{login}@a.org/b@c")
    assert "got 'https://***@a.org/b@c'; expected an address without a name and a pass" in message
    assert "heim" not in message


@pytest.mark.parametrize("name", ["TRAINFLOW__", "TRAINFLOW____SEED", "TRAINFLOW__TRAINING__"])
def test_a_variable_without_a_key_is_refused(name: str, write_job: WriteJob):
    message = refusal_of(write_job(YAML), **{name: "1"})
    assert message.startswith(f"{name}: its name: got ")
    assert "TRAINFLOW__SECTION__KEY" in message


def test_a_key_that_is_no_text_is_refused(write_job: WriteJob):
    message = refusal_of(write_job(YAML + "\n3: x\n"))
    assert "3" in message
    assert "expected" in message
