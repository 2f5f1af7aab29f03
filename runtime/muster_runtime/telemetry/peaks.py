"""Peak bf16 rates of known GPUs, for MFU.

Dense (without sparsity) tensor-core rates from the vendors' data sheets, in FLOP/s. V100 and T4 have no bf16: fp16.
"""

from __future__ import annotations

from typing import Final

PEAK_FLOPS: Final[tuple[tuple[str, float], ...]] = (
    # The first name whose words occur in torch's device name counts: narrow names before wide ones.
    ("B200", 2250e12),  # NVIDIA Blackwell data sheet
    ("B300", 2250e12),  # NVIDIA Blackwell Ultra data sheet
    ("GB200", 2500e12),  # NVIDIA GB200 and GB300 NVL72 data sheets: more power a GPU than in HGX
    ("GB300", 2500e12),
    ("H200 NVL", 835.5e12),  # NVIDIA H200 data sheet
    ("H200", 989.4e12),
    ("GH200", 989.4e12),
    ("H100 PCIe", 756e12),  # NVIDIA H100 data sheet
    ("H100 NVL", 835e12),
    ("H100", 989.4e12),
    ("H800", 989.4e12),
    ("H20", 148e12),
    ("A100", 312e12),  # NVIDIA A100 data sheet
    ("A800", 312e12),
    ("L40S", 362e12),  # NVIDIA L40S data sheet
    ("L40", 181e12),
    ("L4", 121e12),  # NVIDIA L4 data sheet
    ("A40", 149.7e12),
    ("A30", 165e12),
    ("A10", 125e12),
    ("A10G", 70e12),  # AWS' own, with fewer tensor cores at work
    ("V100", 125e12),
    ("T4", 65e12),  # NVIDIA T4 data sheet
    ("MI355X", 2500e12),  # AMD Instinct data sheets
    ("MI350X", 2300e12),
    ("MI325X", 1307e12),
    ("MI300X", 1307e12),
    ("MI250X", 191.5e12),  # of one die: each of the two is a GPU to torch and to Kubernetes
    ("MI210", 181e12),
)


def peak_flops(device_name: str) -> float | None:
    """Peak bf16 FLOP/s of one GPU by torch's name for it, or None for one that isn't known: an RTX A1000 is no A100."""
    words = f" {device_name.replace('-', ' ')} "
    return next((peak for name, peak in PEAK_FLOPS if f" {name} " in words), None)
