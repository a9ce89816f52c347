from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from jobs import finetune_lm, pretrain_lm
from jobs.export import export_model
from trainflow.computation.reports import EvaluationReport, StepReport
from trainflow.config.loading import load_job
from trainflow.data.pack import PackOptions, pack_corpus
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError

# peft asks transformers for a property by its former name.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)

ENTRYPOINT = "jobs.finetune_lm:train"
YAML = Path(finetune_lm.__file__).with_suffix(".yaml")
TINY = pretrain_lm.Args(hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2)


@pytest.fixture
def base_model(corpus: TokenCorpus, tmp_path: Path) -> Path:
    torch.manual_seed(3)
    export_model(pretrain_lm.build_model(TINY, corpus), corpus, tmp_path / "base")
    return tmp_path / "base"


def test_only_the_adapters_are_trained(base_model: Path):
    model = finetune_lm.build_model(finetune_lm.Args(base_model=base_model, rank=2))
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(trainable) == 2 * 4
    assert all("lora_" in name for name in trainable)


def test_a_run_moves_and_exports_the_adapters_alone(
    run_job: Callable[..., list[StepReport | EvaluationReport]], base_model: Path, tmp_path: Path
):
    folder = tmp_path / "adapter"
    args = {"base_model": str(base_model), "lr": 0.05, "warmup_steps": 0, "rank": 4}
    reports = run_job(ENTRYPOINT, 8, **args, export_dir=str(folder))
    assert isinstance(reports[0], StepReport)
    assert isinstance(reports[-1], StepReport)
    assert reports[-1].loss < reports[0].loss
    exported = load_file(folder / "adapter_model.safetensors")
    assert len(exported) == 2 * 4
    assert all("lora_" in name for name in exported)
    assert all(tensor.any() for tensor in exported.values())


def test_base_and_adapter_load_as_one_model(
    run_job: Callable[..., list[StepReport | EvaluationReport]], base_model: Path, tmp_path: Path
):
    args = {"base_model": str(base_model), "lr": 0.05, "warmup_steps": 0}
    run_job(ENTRYPOINT, 4, **args, export_dir=str(tmp_path / "adapter"))
    run_job(ENTRYPOINT, 4, **args, export_dir=str(tmp_path / "merged"), merge=True)
    tokens = torch.arange(10, 20)[None]
    logits = {
        name: AutoModelForCausalLM.from_pretrained(tmp_path / name)(input_ids=tokens).logits
        for name in ("base", "adapter", "merged")
    }
    torch.testing.assert_close(logits["adapter"], logits["merged"])
    assert not torch.allclose(logits["adapter"], logits["base"])


def test_merging_leaves_the_trained_model_as_it_was(base_model: Path):
    model = finetune_lm.build_model(finetune_lm.Args(base_model=base_model, rank=2))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(parameter)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    finetune_lm.merge(model)
    assert model.state_dict().keys() == before.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_corpus_of_another_tokenizer_is_refused(base_model: Path, tmp_path: Path):
    text = tmp_path / "other.txt"
    text.write_text("Nothing alike, nothing the same. " * 100)
    options = PackOptions(vocab_size=290, sequence_length=16)
    pack_corpus(str(text), str(tmp_path / "other"), options=options)
    other = TokenCorpus.open(str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"data\.url: got .*other.*another tokenizer"):
        finetune_lm.require_same_tokenizer(base_model, other)


def test_the_corpus_of_the_base_model_passes(base_model: Path, corpus: TokenCorpus):
    finetune_lm.require_same_tokenizer(base_model, corpus)


def test_a_missing_base_model_is_refused(corpus: TokenCorpus, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"args\.base_model: got .*none.*expected the folder"):
        finetune_lm.require_same_tokenizer(tmp_path / "none", corpus)


def test_the_job_file_is_valid():
    job = load_job(YAML, env={})
    args = finetune_lm.Args.model_validate(job.args, extra="forbid")
    assert job.entrypoint == ENTRYPOINT
    assert args.export_dir is not None
