"""What the demo shows of a model, without the cluster that it is trained on."""

from pathlib import Path

import pytest
import torch

from jobs import demo, pretrain_lm
from jobs.export import export_model
from trainflow.data.token_corpus import TokenCorpus

TINY = pretrain_lm.Args(hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2)


@pytest.fixture
def exported(corpus: TokenCorpus, tmp_path: Path) -> Path:
    torch.manual_seed(3)
    export_model(pretrain_lm.build_model(TINY, corpus), corpus, tmp_path / "model")
    return tmp_path / "model"


def test_the_same_weights_write_the_same_text(exported: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "TEXT_TOKENS", 15)
    texts: set[str] = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        texts.add(demo.generate(exported))
    assert len(texts) == 1
    monkeypatch.setattr(demo, "TEXT_SEED", 7)
    assert demo.generate(exported) not in texts, "it is not sampled"


def test_text_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    text = "x[i] = y[/b]\n    [bold]"
    summary = {"step_s": 0.5, "num_steps": 120, "text": text}
    demo.show([], summary | {"weights_identical": True, "losses_identical": True})
    assert text in capsys.readouterr().out
