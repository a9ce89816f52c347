"""A checkpoint of the jobs that come with TrainFlow, exported: what transformers and peft load."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

from tests.unit.checkpointing.small_job import save_state
from tests.unit.jobs.test_pretrain_lm import TINY
from trainflow.checkpointing.safetensors_export import ExportOptions, export_safetensors
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.checkpoint_import import ImportRequest, import_checkpoint
from trainflow.computation.outside_a_run import build_state
from trainflow.config.job import JobConfig
from trainflow.data.token_corpus import TokenCorpus

STEP = 3


def make_job(entrypoint: str, corpus: TokenCorpus, **args: Any) -> JobConfig:
    return JobConfig.model_validate(
        {
            "name": "lm",
            "entrypoint": entrypoint,
            "args": args,
            "training": {"max_steps": STEP, "global_batch_size": 4, "microbatch_size": 2},
            "data": {"url": corpus.url},
            "workers": {"minimum": 1, "target": 1},
        }
    )


def save_moved(job: JobConfig, store: CheckpointStore) -> dict[str, torch.Tensor]:
    """Save a state that isn't the initial one; returns the model's own."""
    with build_state(job, "lm-abcdef") as (state, _):
        module = state.models["model"].module
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter))
        save_state(state, store, job, STEP)
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_a_pretrained_model_is_loaded_by_transformers(
    corpus: TokenCorpus, tmp_path: Path, in_this_process: None
):
    store = CheckpointStore(str(tmp_path / "store"))
    job = make_job("jobs.pretrain_lm:train", corpus, **TINY)
    trained = save_moved(job, store)
    done = export_safetensors(store, STEP, ExportOptions(tmp_path / "model"))
    assert done.notes == ()
    assert set(done.files) == {"model.safetensors", "config.json", "generation_config.json"}
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(report.values()), report
    assert type(model).__name__ == "LlamaForCausalLM"
    loaded = model.state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in loaded.items())
    require_import(tmp_path / "model", store, job)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_adapters_are_loaded_by_peft(corpus: TokenCorpus, tmp_path: Path, in_this_process: None):
    base = CheckpointStore(str(tmp_path / "base"))
    save_moved(make_job("jobs.pretrain_lm:train", corpus, **TINY), base)
    export_safetensors(base, STEP, ExportOptions(tmp_path / "model"))
    tokenizer = Path(corpus.url) / "tokenizer.json"
    (tmp_path / "model" / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    store = CheckpointStore(str(tmp_path / "store"))
    job = make_job("jobs.finetune_lm:train", corpus, base_model=str(tmp_path / "model"))
    trained = save_moved(job, store)
    done = export_safetensors(store, STEP, ExportOptions(tmp_path / "adapter"))
    assert set(done.files) == {"adapter_model.safetensors", "adapter_config.json"}
    assert done.notes == ()
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in loaded.items())
    require_import(tmp_path / "adapter", store, job)


def require_import(folder: Path, store: CheckpointStore, job: JobConfig) -> None:
    """Import an export, and compare it with what was exported."""
    other = CheckpointStore(str(folder.parent / "other"))
    given = job.model_dump_json()
    import_checkpoint(ImportRequest(str(folder), other.url, "safetensors", 0, given, None))
    saved, imported = store.read_manifest(STEP).tensors, other.read_manifest(0).tensors
    models = [path for path in saved if path.startswith("/models/")]
    assert models
    assert all(imported[path] == saved[path] for path in models)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe models here: a process of its own costs seconds; the command line's tests do."""
    from trainflow.checkpointing import safetensors_export  # noqa: PLC0415
    from trainflow.computation import model_description  # noqa: PLC0415

    def describe(_: str, request: dict[str, Any]) -> Any:
        return model_description.describe_model(**request | {"frozen": Path(request["frozen"])})

    monkeypatch.setattr(safetensors_export, "run_with_torch", describe)
