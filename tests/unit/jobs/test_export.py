from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from jobs import pretrain_lm
from jobs.export import export_model, load_tokenizer, require_export_folder
from trainflow.data.token_corpus import TokenCorpus
from trainflow.errors import ConfigError

TINY = pretrain_lm.Args(hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2)


@pytest.fixture
def model(corpus: TokenCorpus) -> LlamaForCausalLM:
    torch.manual_seed(3)
    return pretrain_lm.build_model(TINY, corpus)


def test_an_exported_model_loads_and_generates_text(
    model: LlamaForCausalLM, corpus: TokenCorpus, tmp_path: Path
):
    export_model(model, corpus, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    prompt = tokenizer("Line 1", return_tensors="pt")
    generated = loaded.generate(**prompt, max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(generated[0]).startswith("Line 1")
    assert loaded.generation_config.eos_token_id == corpus.summary.end_of_text_id


def test_the_exported_tokenizer_gives_the_tokens_of_the_corpus(
    model: LlamaForCausalLM, corpus: TokenCorpus, tmp_path: Path
):
    export_model(model, corpus, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    sample = corpus.__getitems__([5])["input_ids"][0].tolist()
    assert tokenizer.encode(tokenizer.decode(sample)) == sample
    assert tokenizer.eos_token_id == corpus.summary.end_of_text_id


def test_the_same_weights_give_the_same_bytes(
    model: LlamaForCausalLM, corpus: TokenCorpus, tmp_path: Path
):
    twin = pretrain_lm.build_model(TINY, corpus)
    twin.load_state_dict(dict(reversed(model.state_dict().items())))
    export_model(model, corpus, tmp_path / "one")
    export_model(twin, corpus, tmp_path / "other")
    one, other = (tmp_path / name / "model.safetensors" for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_a_new_export_takes_the_place_of_an_old_one(
    model: LlamaForCausalLM, corpus: TokenCorpus, tmp_path: Path
):
    folder = tmp_path / "deep" / "model"
    export_model(model, corpus, folder)
    (folder / "left-over.bin").write_bytes(b"of the export before")
    model.model.norm.weight.data.fill_(2.0)
    export_model(model, corpus, folder)
    assert load_file(folder / "model.safetensors")["model.norm.weight"].eq(2.0).all()
    assert not (folder / "left-over.bin").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_export_that_fails_leaves_the_old_one(
    model: LlamaForCausalLM,
    corpus: TokenCorpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder = tmp_path / "model"
    export_model(model, corpus, folder)
    before = (folder / "model.safetensors").read_bytes()
    model.model.norm.weight.data.fill_(2.0)

    def no_tokenizer(_: TokenCorpus) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("jobs.export.load_tokenizer", no_tokenizer)
    with pytest.raises(OSError, match="no space left"):
        export_model(model, corpus, folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_other_files_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"args\.export_dir: got .*thesis\.tex.*expected a new"):
        require_export_folder(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path):
    path = tmp_path / "model"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"args\.export_dir"):
        require_export_folder(path)


def test_no_folder_a_new_one_and_an_empty_one_pass(tmp_path: Path):
    for folder in (None, tmp_path / "new", tmp_path):
        require_export_folder(folder)


def test_the_end_of_text_token_begins_and_ends(corpus: TokenCorpus):
    tokenizer = load_tokenizer(corpus)
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == corpus.summary.end_of_text_id
