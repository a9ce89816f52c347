"""The table of metrics keeps Prometheus's conventions, and stays small."""

import re

import pytest

from trainflow.monitoring.metric import Kind, Metric
from trainflow.monitoring.metrics import METRICS
from trainflow.monitoring.metrics_page import SECTIONS

MAX_SERIES = 400

by_name = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.suffix)


def test_every_metric_has_a_name_and_a_place_on_the_page_of_its_own():
    assert len({each.name for each in METRICS}) == len(METRICS)
    placed = [each.name for section in SECTIONS.values() for each in section]
    assert sorted(placed) == sorted(each.name for each in METRICS)


@by_name
def test_a_name_is_one_for_prometheus(metric: Metric):
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.suffix)
    assert metric.shown_name == f"ray_trainflow_{metric.suffix}"


@by_name
def test_a_counter_and_nothing_else_is_a_total(metric: Metric):
    assert metric.suffix.endswith("_total") == (metric.kind is Kind.COUNTER)


@by_name
def test_a_unit_is_a_base_unit_and_ends_the_name(metric: Metric):
    assert metric.unit in {"1", "seconds", "bytes", "ratio", "steps"}
    if metric.unit != "1":
        assert metric.suffix.removesuffix("_total").endswith(f"_{metric.unit}")


@by_name
def test_labels_are_few_and_no_rank(metric: Metric):
    assert metric.label_names[0] == "job"
    assert {"rank", "worker", "node"}.isdisjoint(metric.label_names)
    assert all(metric.labels.values())


@by_name
def test_a_histogram_and_nothing_else_has_buckets_that_grow(metric: Metric):
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


@by_name
def test_a_meaning_is_a_sentence(metric: Metric):
    assert metric.meaning.endswith(".")
    assert metric.meaning[0].isupper() or metric.meaning[0].isdigit()
    assert "|" not in metric.meaning


def test_a_run_makes_few_series_however_many_ranks_it_has():
    assert sum(metric.num_series for metric in METRICS) <= MAX_SERIES


def test_series_are_counted_as_prometheus_does():
    plain = Metric("a", Kind.GAUGE, "1", "A.", {"x": ("1", "2"), "y": ("1", "2", "3")})
    histogram = Metric("b", Kind.HISTOGRAM, "1", "B.", {"x": ("1", "2")}, (1.0, 2.0))
    assert plain.num_series == 6
    assert histogram.num_series == 2 * (2 + 3), "each bound, infinity, sum and count"
    assert Metric("c", Kind.GAUGE, "1", "C.", num_hosts=5).num_series == 5, "at once"
