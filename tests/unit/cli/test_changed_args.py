"""A run goes on from a checkpoint whose args were the same, however they were written."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing.resume import find_resumable
from trainflow.checkpointing.store import CheckpointStore
from trainflow.cli.preflight import check_job
from trainflow.config import JobConfig
from trainflow.errors import ConfigError

SAVED_STEP = 5


@pytest.fixture
def goes_on(job_file: Path, tmp_path: Path) -> Callable[..., JobConfig]:
    """Check the job with a folder of checkpoints; returns what its coordinator would get."""

    def check(*overrides: str) -> JobConfig:
        config = check_job(job_file, [f"checkpoint.url={tmp_path}/store", *overrides]).config
        sent = JobConfig.model_validate_json(config.as_sent())
        find_resumable(sent)  # the coordinator compares too, without the model of the args
        return sent

    return check


def save(config: JobConfig, **named: Any) -> None:
    """Commit a checkpoint that holds these settings; with ``named``, only these args."""
    args = named or config.args
    settings = config.model_copy(update={"args": args}).model_dump(mode="json")
    assert config.checkpoint.url is not None
    manifest = replace(make_manifest(), step=SAVED_STEP, config=settings)
    CheckpointStore(config.checkpoint.url).commit(manifest)


def change_default(job_file: Path, line: str) -> None:
    module = job_file.parent / "tiny_job_of_a_test.py"
    module.write_text(module.read_text().replace("lr: float = 0.5", line))
    sys.modules.pop("tiny_job_of_a_test", None)


def test_a_default_that_the_code_has_changed_is_refused_or_accepted_by_name(
    goes_on, job_file: Path
):
    save(goes_on())
    change_default(job_file, "lr: float = 0.25  # another")
    with pytest.raises(ConfigError, match=r"args\.lr: was '0.5', is '0.25'"):
        goes_on()
    assert goes_on("checkpoint.accept=[args.lr]").args == {"lr": 0.25}
    assert goes_on("args.lr=0.5").args == {"lr": 0.5}


def test_spelling_out_a_default_is_no_change(goes_on):
    save(goes_on())
    assert goes_on("args.lr=0.5").checkpoint.accept == []
    assert goes_on("args.lr='0.5'").args == goes_on().args


def test_an_argument_that_a_checkpoint_does_not_name_had_its_default(goes_on, job_file: Path):
    change_default(job_file, "lr: float = 0.5\n    depth: int = 2")
    save(goes_on(), depth="2")  # as a release that kept what the job file had
    assert goes_on().checkpoint.accept == ["args.depth", "args.lr"]
    goes_on("args.lr=0.5", "args.depth=2")
    with pytest.raises(ConfigError, match=r"\(args\.lr: was 'None', is '0.9'\)"):
        goes_on("args.lr=0.9")
    with pytest.raises(ConfigError, match=r"\(args\.depth: was '2', is '3'\)"):
        goes_on("args.depth=3")


def test_an_argument_that_is_gone_is_refused_by_name_and_no_other_is(goes_on, job_file: Path):
    save(goes_on(), depth=2)
    with pytest.raises(ConfigError, match=r"\(args\.depth: was '2', is 'None'\)"):
        goes_on()
    change_default(job_file, "depth: str = 'x'")
    with pytest.raises(ConfigError, match=r"args\.depth: was '2', is 'x'"):
        goes_on()  # what was saved is no args of this model: nothing is taken for equal


def test_args_that_json_changes_are_kept_as_the_job_names_them(goes_on, job_file: Path, capsys):
    change_default(job_file, "lr: float = float('inf')\n    depth: int = 2")
    assert goes_on("args.depth=3").args == {"depth": 3}
    assert "a changed default isn't noticed" in capsys.readouterr().err
    named = goes_on("args.lr=-.inf")
    assert named.args == {"lr": -math.inf}
    assert "infinity and NaN as null" in capsys.readouterr().err
    save(named)
    assert goes_on("args.lr=-.inf").args == {"lr": -math.inf}
