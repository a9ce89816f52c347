"""What a device computes at most, by what torch calls it; and nothing where nobody knows."""

import re

import pytest

from trainflow.monitoring.peaks import PEAKS, Peak, find_peak


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 80GB HBM3", "fp32", 67.0),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
        ("NVIDIA L4", "bf16", 121.0),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla T4", "fp16", 65.0),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_a_device_that_is_known(name: str, precision, tera: float):
    assert find_peak(name, precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("cpu", "fp32"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA A1000", "bf16"),
        ("NVIDIA H1000", "bf16"),
        ("NVIDIA B200", "fp32"),
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("Tesla T4", "bf16"),
        ("", "fp16"),
    ],
)
def test_one_that_is_not(name: str, precision):
    assert find_peak(name, precision) is None


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_every_peak_has_its_source(peak: Peak):
    assert re.search(r"datasheet|whitepaper", peak.source)
    assert peak.half > 0
    assert peak.single is None or 0 < peak.single < peak.half
