import pytest

from tests.distributed.jobs import make_job
from trainflow.config.comparing import incomparable_settings


def config(**sections):
    return make_job(**sections).model_dump(mode="json")


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({"world": 2}, ["workers.target"]),
        ({"training": {"seed": 6}}, ["training.seed"]),
        ({"communication": {"backend": "gloo"}}, ["communication.backend"]),
        ({"parallel": {"activation_checkpointing": "full"}}, ["parallel.activation_checkpointing"]),
        (
            {"parallel": {"mode": "fsdp"}, "training": {"seed": 6}},
            ["parallel.mode", "training.seed"],
        ),
    ],
)
def test_what_alters_bits_is_named_with_both_values(sections, names: list[str]):
    found = incomparable_settings(config(), config(**sections))
    assert list(found) == names
    assert all(before != now for before, now in found.values())


def test_what_alters_none_is_not():
    other = {"spares": 1, "minimum": 2, "monitoring": {"digest_every_steps": 3}}
    assert incomparable_settings(config(), config(**other)) == {}
