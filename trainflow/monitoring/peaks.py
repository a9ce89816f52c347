"""What devices compute at most, by their makers' data sheets. Pure.

Dense matrix products, without the sparsity that doubles many advertised figures, at the boost clock
and the full power limit of the variant that is named. A device that isn't here has no peak: a share
of a guess would be one too.
"""

import re
from typing import Literal, NamedTuple

Precision = Literal["fp32", "bf16", "fp16"]

_TERA = 1e12
_PART = "MIG"


class Peak(NamedTuple):
    """What one device computes at most, in 10^12 floating-point operations a second.

    Attributes:
        name: pattern of what torch calls it (``torch.cuda.get_device_name``).
        half: in bf16 and fp16, summed up in fp32.
        single: in fp32, without TF32, which torch leaves off; None if nobody says.
        source: who says so.
        bf16: whether it computes in bf16 at that rate, too.
    """

    name: str
    half: float
    single: float | None
    source: str
    bf16: bool = True


PEAKS: tuple[Peak, ...] = (
    Peak(r"\bB200\b", 2250.0, None, "NVIDIA Blackwell datasheet (HGX B200), 2024"),
    Peak(r"\bH200 NVL\b", 835.5, 60.0, "NVIDIA H200 datasheet, 2024"),
    Peak(r"\bH200\b", 989.5, 67.0, "NVIDIA H200 datasheet, 2024"),
    Peak(r"\bH100 NVL\b", 835.5, 60.0, "NVIDIA H100 datasheet, 2024"),
    Peak(r"\bH100 PCIe\b", 756.0, 51.0, "NVIDIA H100 datasheet, 2023"),
    Peak(r"\bH100\b.*\bHBM3\b", 989.5, 67.0, "NVIDIA H100 datasheet (SXM), 2024"),
    Peak(r"\bA100\b", 312.0, 19.5, "NVIDIA A100 datasheet, 2021"),
    Peak(r"\bA30\b", 165.0, 10.3, "NVIDIA A30 datasheet, 2022"),
    Peak(r"\bA40\b", 149.7, 37.4, "NVIDIA A40 datasheet, 2022"),
    Peak(r"\bA10\b", 125.0, 31.2, "NVIDIA A10 datasheet, 2022"),
    Peak(r"\bL40S\b", 362.05, 91.6, "NVIDIA L40S datasheet, 2023"),
    Peak(r"\bL40\b", 181.05, 90.5, "NVIDIA L40 datasheet, 2023"),
    Peak(r"\bL4\b", 121.0, 30.3, "NVIDIA L4 datasheet, 2023"),
    Peak(r"\bRTX 4090$", 165.2, 82.6, "NVIDIA Ada architecture whitepaper, appendix A"),
    Peak(r"\bRTX 3090$", 71.0, 35.6, "NVIDIA GA102 architecture whitepaper, appendix A"),
    Peak(r"\bV100-SXM2\b", 125.0, 15.7, "NVIDIA V100 datasheet, 2020", bf16=False),
    Peak(r"\bV100-PCIE\b", 112.0, 14.0, "NVIDIA V100 datasheet, 2020", bf16=False),
    Peak(r"\bT4\b", 65.0, 8.1, "NVIDIA T4 datasheet, 2019", bf16=False),
    Peak(r"\bMI300X\b", 1307.4, 163.4, "AMD Instinct MI300X datasheet, 2023"),
    Peak(r"\bMI325X\b", 1307.4, 163.4, "AMD Instinct MI325X datasheet, 2024"),
)
"""All that are known; the first whose pattern is found in a name counts."""


def find_peak(device_name: str, precision: Precision) -> float | None:
    """Return how many floating-point operations a second a device does at most; None if unknown.

    Args:
        device_name: as torch tells it; ``cpu`` for a processor, which has none here, as a part of a
            device hasn't (MIG).
        precision: that products are computed in.
    """
    peak = next((each for each in PEAKS if re.search(each.name, device_name)), None)
    if peak is None or _PART in device_name or (precision == "bf16" and not peak.bf16):
        return None
    most = peak.single if precision == "fp32" else peak.half
    return None if most is None else most * _TERA
