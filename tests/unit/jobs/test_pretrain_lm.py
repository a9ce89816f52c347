import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from jobs import pretrain_lm
from trainflow.computation.reports import EvaluationReport, StepReport
from trainflow.config.entrypoint import resolve_entrypoint
from trainflow.config.loading import load_job
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError

ENTRYPOINT = "jobs.pretrain_lm:train"
YAML = Path(pretrain_lm.__file__).with_suffix(".yaml")
TINY = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "num_heads": 2}


def learning_rates(warmup_steps: int, decay_steps: int, num_steps: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = pretrain_lm.warm_up_then_decay(optimizer, warmup_steps, decay_steps)
    rates: list[float] = []
    for _ in range(num_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_the_model_is_the_one_that_args_describe(corpus: TokenCorpus):
    model = pretrain_lm.build_model(pretrain_lm.Args(**TINY), corpus)
    assert model.get_input_embeddings().weight.shape == (corpus.vocab_size, 16)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert len(model.model.layers) == 1
    assert model.config.max_position_embeddings == corpus.sequence_length


def test_the_default_model_has_about_5m_parameters(
    corpus: TokenCorpus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(TokenCorpus, "vocab_size", 4096)
    with torch.device("meta"):
        model = pretrain_lm.build_model(pretrain_lm.Args(), corpus)
    assert model.num_parameters() == pytest.approx(5.0e6, rel=0.01)


def test_the_learning_rate_rises_then_falls_to_a_tenth():
    rates = learning_rates(warmup_steps=4, decay_steps=20, num_steps=30)
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:21] == sorted(rates[4:21], reverse=True)
    assert rates[12] == pytest.approx(0.55)
    assert rates[20:] == pytest.approx([0.1] * 10)


def test_a_warm_up_of_no_steps_starts_at_the_top():
    assert learning_rates(warmup_steps=0, decay_steps=10, num_steps=1) == [1.0]


def test_the_schedule_goes_through_json():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = pretrain_lm.warm_up_then_decay(optimizer, 4, 20)
    for _ in range(7):
        optimizer.step()
        scheduler.step()
    state = json.loads(json.dumps(scheduler.state_dict()))
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    restored = pretrain_lm.warm_up_then_decay(other, 4, 20)
    restored.load_state_dict(state)
    optimizer.step()
    scheduler.step()
    other.step()
    restored.step()
    assert restored.get_last_lr() == scheduler.get_last_lr()


def test_a_run_learns_evaluates_and_exports(
    run_job: Callable[..., list[StepReport | EvaluationReport]],
    tmp_path: Path,
):
    folder = tmp_path / "model"
    args = TINY | {"warmup_steps": 2, "lr": 0.02, "evaluate_every": 6}
    reports = run_job(ENTRYPOINT, 12, **args, export_dir=str(folder))
    steps = [each for each in reports if isinstance(each, StepReport)]
    assert steps[-1].lr == pytest.approx(0.002, rel=0.25), "the schedule ends with the run"
    assert [step.step for step in steps] == list(range(1, 13))
    assert steps[-1].loss < steps[0].loss - 1.0
    evaluations = [each for each in reports if isinstance(each, EvaluationReport)]
    assert [(each.step, each.name) for each in evaluations] == [
        (6, "held_out_loss"),
        (12, "held_out_loss"),
    ]
    assert evaluations[1].value < evaluations[0].value
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    text = tokenizer("Line 1", return_tensors="pt")
    assert len(model.generate(**text, max_new_tokens=4, min_new_tokens=4)[0]) > 4


def test_two_runs_export_the_same_bytes(
    run_job: Callable[..., list[StepReport | EvaluationReport]], tmp_path: Path
):
    for name in ("one", "other"):
        run_job(ENTRYPOINT, 3, **TINY, export_dir=str(tmp_path / name))
    one, other = (tmp_path / name / "model.safetensors" for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_a_folder_that_may_not_be_replaced_is_refused_before_training(
    run_job: Callable[..., list[StepReport | EvaluationReport]], tmp_path: Path
):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"args\.export_dir"):
        run_job(ENTRYPOINT, 3, **TINY, export_dir=str(tmp_path))


def test_heads_that_do_not_fit_the_width_are_refused():
    with pytest.raises(ConfigError, match=r"'hidden_size': 20.*an even multiple of num_heads = 4"):
        resolve_entrypoint(ENTRYPOINT).check_args({"hidden_size": 20})


def test_the_job_file_is_valid():
    job = load_job(YAML, env={})
    args = pretrain_lm.Args.model_validate(job.args, extra="forbid")
    assert job.entrypoint == ENTRYPOINT
    assert args.export_dir is not None


def test_samples_that_are_no_packed_corpus_are_refused():
    with pytest.raises(ConfigError, match=r"data: got a list, expected a packed token corpus"):
        pretrain_lm.require_corpus(cast("Any", SimpleNamespace(dataset=[1, 2])))
