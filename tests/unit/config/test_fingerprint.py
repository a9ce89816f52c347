import pytest

from tests.distributed.jobs import make_job
from trainflow.config.fingerprint import altering_settings, changed_settings, fingerprint


def config(**sections):
    return make_job(**sections).model_dump(mode="json")


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"training": {"seed": 6}}, "training.seed"),
        ({"training": {"max_steps": 99}}, "training.max_steps"),
        ({"parallel": {"mode": "fsdp"}}, "parallel.mode"),
        ({"communication": {"bucket_bytes": 2000}}, "communication.bucket_bytes"),
    ],
)
def test_what_alters_the_run_is_named_with_both_values(sections, name: str):
    changed = changed_settings(config(), config(**sections))
    (section,) = sections.values()
    (value,) = section.values()
    assert changed.keys() == {name}
    assert changed[name][1] == value
    assert fingerprint(make_job()) != fingerprint(make_job(**sections))


def test_how_many_machines_there_are_and_how_they_talk_alters_nothing():
    other = {"world": 2, "spares": 1, "minimum": 2, "communication": {"backend": "gloo"}}
    assert changed_settings(config(), config(**other)) == {}
    assert fingerprint(make_job()) == fingerprint(make_job(**other))


def test_the_world_a_batch_is_meant_for_alters_a_run_whose_batch_follows_the_world():
    before, now = ({"world": n, "training": {"batch_scaling": "linear"}} for n in (3, 2))
    changed = changed_settings(config(**before), config(**now))
    assert changed == {"workers.target": (3, 2)}
    assert fingerprint(make_job(**before)) != fingerprint(make_job(**now))


def test_where_values_are_kept_until_they_are_needed_alters_nothing():
    other = {"parallel": {"activation_checkpointing": "full"}}
    assert changed_settings(config(), config(**other)) == {}
    before = config()
    del before["parallel"]["activation_checkpointing"], before["parallel"]["cpu_offload"]
    assert changed_settings(before, config()) == {}


def test_the_type_that_parameters_are_gathered_in_alters_the_run():
    before, now = ({"parallel": {"mode": "fsdp", "gather": each}} for each in ("fp32", "fp8"))
    changed = changed_settings(config(**before), config(**now))
    assert changed == {"parallel.gather": ("fp32", "fp8")}
    assert fingerprint(make_job(**before)) != fingerprint(make_job(**now))


def test_a_setting_of_another_release_is_a_difference():
    before = config()
    before["training"]["since_removed"] = 1
    assert changed_settings(before, config()) == {"training.since_removed": (1, None)}


def test_a_changed_argument_is_named():
    before, now = config(), config()
    before["args"], now["args"] = {"lr": 0.1, "depth": 2}, {"lr": 0.2, "depth": 2}
    assert changed_settings(before, now) == {"args.lr": (0.1, 0.2)}


def test_when_a_step_is_skipped_for_its_norm_alters_a_run_that_skips():
    def judged(**anomalies):
        return {"monitoring": {"anomalies": anomalies}}

    told = config(**judged(norm_z=9.0, spike_z=7.0))
    assert changed_settings(config(), told) == {}, "that only says what is told"
    without = config()
    for name in ("action", "max_skips", "max_rewinds", "rewind_margin"):
        del without["monitoring"]["anomalies"][name]
    assert changed_settings(without, config()) == {}, "of an earlier release"
    assert fingerprint(make_job()) == fingerprint(make_job(**judged(norm_z=9.0)))
    skips = judged(action="skip")
    assert changed_settings(config(), config(**skips)) == {
        "monitoring.anomalies.action": (None, "skip"),
        "monitoring.anomalies.max_skips": (None, 5),
        "monitoring.anomalies.norm_z": (None, 8.0),
    }
    stricter = config(**judged(action="skip", norm_z=7.0, spike_z=7.0))
    assert changed_settings(config(**skips), stricter) == {
        "monitoring.anomalies.norm_z": (8.0, 7.0)
    }


def test_when_a_run_goes_back_for_its_loss_alters_one_that_does():
    def judged(**anomalies):
        section = {"action": "rewind"} | anomalies
        checkpoint = {"url": "/store", "every_steps": 10}
        return config(monitoring={"anomalies": section}, checkpoint=checkpoint)

    assert changed_settings(judged(), judged(norm_z=9.0)) == {}
    assert changed_settings(config(), judged()) == {
        "monitoring.anomalies.action": (None, "rewind"),
        "monitoring.anomalies.max_rewinds": (None, 2),
        "monitoring.anomalies.rewind_margin": (None, 10),
        "monitoring.anomalies.rise_ratio": (None, 0.05),
        "monitoring.anomalies.spike_z": (None, 6.0),
    }
    stricter = judged(spike_z=5.0, max_rewinds=1)
    assert changed_settings(judged(), stricter).keys() == {
        "monitoring.anomalies.spike_z",
        "monitoring.anomalies.max_rewinds",
    }


def test_a_job_of_a_release_without_anomalies_has_none_that_alter_it():
    before = config()
    del before["monitoring"]["anomalies"]
    assert changed_settings(before, config()) == {}
    del before["monitoring"]
    assert changed_settings(before, config()) == {}
    assert altering_settings(before) == altering_settings(config())
