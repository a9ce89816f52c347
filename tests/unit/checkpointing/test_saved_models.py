"""Which tensors of a checkpoint are a model's, and what others call them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.dcp_names import dcp_names
from trainflow.checkpointing.manifest import Manifest, Shard, TensorEntry
from trainflow.checkpointing.saved_models import weights_of
from trainflow.errors import CheckpointError, ConfigError


def manifest_of(skeleton: Any, *paths: str) -> Manifest:
    entry = TensorEntry("uint8", (0,), (Shard(whole((0,)), ()),))
    return replace(make_manifest(), skeleton=skeleton, tensors=dict.fromkeys(paths, entry))


def model(*numbers: int) -> Any:
    return {"dict": [[f"w/{n}", {"tensor": n}] for n in numbers]}


TWO = manifest_of(
    {"dict": [["models", {"dict": [["actor", model(0)], ["critic", model(1, 2)]]}]]},
    "/a",
    "/b",
    "/c",
)


def test_a_models_tensors_are_found_by_their_own_names():
    assert weights_of(TWO, "critic") == {"w/1": "/b", "w/2": "/c"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [(None, "got no name, expected one of .*: actor, critic"), ("x", "got 'x', expected one of")],
)
def test_which_model_must_be_clear(asked: str | None, said: str):
    with pytest.raises(ConfigError, match=said):
        weights_of(TWO, asked)


@pytest.mark.parametrize("skeleton", [None, {"list": []}, {"dict": []}, {"dict": [["models", 3]]}])
def test_a_state_without_models_has_none(skeleton: Any):
    with pytest.raises(ConfigError, match="models in the checkpoint: none"):
        weights_of(manifest_of(skeleton), None)


def test_keys_are_joined_by_dots():
    skeleton = {"dict": [["a/b", {"tuple": [1, {"tensor": 0}]}], [3, {"list": [{"tensor": 1}]}]]}
    assert dcp_names(manifest_of(skeleton, "/x", "/y")) == {"/x": "a/b.1", "/y": "3.0"}


def test_a_skeleton_that_hides_a_tensor_is_refused():
    with pytest.raises(CheckpointError, match="names 0 of its 1 tensors"):
        dcp_names(manifest_of({"other": {"tensor": 0}}, "/x"))
