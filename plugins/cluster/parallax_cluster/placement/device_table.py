"""Data sheets of well-known devices, by kinds that reach the same share of them.

Memory, dense FP16 FLOPS with FP32 accumulation, and memory bandwidth are those of the makers' data sheets; of CPUs the
FLOPS are those of their vector units in FP32. The efficiencies are typical of decoder layers on devices of a kind:
docs/explanation/placement.md says from which measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Efficiency(NamedTuple):
    """What layers reach on devices of a kind."""

    flops_efficiency: float = 0.5
    bandwidth_efficiency: float = 0.75
    step_s: float = 0.0002
    layer_s: float = 0.00002


TYPICAL = Efficiency()
"""Of devices of which nothing but the data sheet is known."""


class Figures(NamedTuple):
    """The data sheet of a device."""

    memory_gb: tuple[float, ...]
    """The sizes it is sold with, the usual one first."""
    tflops: float
    bandwidth_gb_s: float


class Kind(NamedTuple):
    """Devices that reach the same share of their data sheets."""

    name: str
    efficiency: Efficiency
    devices: Mapping[str, tuple[float | tuple[float, ...], float, float]]
    """Memory in GB (several sizes: the usual one first), TFLOPS and GB/s, by names of products."""

    def list_devices(self) -> Iterator[tuple[str, Figures]]:
        """Yield the devices by their names."""
        for name, (sizes, tflops, bandwidth) in self.devices.items():
            yield name, Figures(sizes if isinstance(sizes, tuple) else (sizes,), tflops, bandwidth)


KINDS = (
    Kind(
        "GeForce",
        Efficiency(flops_efficiency=0.75, bandwidth_efficiency=0.78),
        {
            "GTX1080Ti": (11, 11.3, 484),
            "GTX1070": (8, 6.5, 256),
            "GTX1080": (8, 8.9, 320),
            "RTX2060": (6, 25.8, 336),
            "RTX2060Super": (8, 28.7, 448),
            "RTX2070": (8, 29.9, 448),
            "RTX2070Super": (8, 36.3, 448),
            "RTX2080": (8, 42.4, 448),
            "RTX2080Super": (8, 44.6, 496),
            "RTX2080Ti": (11, 53.8, 616),
            "RTX3050": (8, 18.2, 224),
            "RTX3060": (12, 25.5, 360),
            "RTX3060Ti": (8, 32.4, 448),
            "RTX3070": (8, 40.6, 448),
            "RTX3070Ti": (8, 43.5, 608),
            "RTX3080": ((10, 12), 59.5, 760),
            "RTX3080Ti": (12, 68.2, 912),
            "RTX3090": (24, 71, 936),
            "RTX3090Ti": (24, 80, 1008),
            "RTX4060": (8, 30.2, 272),
            "RTX4060Ti": ((8, 16), 44.1, 288),
            "RTX4070": (12, 58.3, 504),
            "RTX4070Super": (12, 71, 504),
            "RTX4070Ti": (12, 80.2, 504),
            "RTX4070TiSuper": (16, 88.2, 672),
            "RTX4080": (16, 97.5, 717),
            "RTX4080Super": (16, 104.4, 736),
            "RTX4090": (24, 165.2, 1008),
            "RTX5060": (8, 38.4, 448),
            "RTX5060Ti": ((16, 8), 47.4, 448),
            "RTX5070": (12, 61.7, 672),
            "RTX5070Ti": (16, 87.9, 896),
            "RTX5080": (16, 112.6, 960),
            "RTX5090": (32, 209.5, 1792),
        },
    ),
    Kind(
        "laptop",
        Efficiency(flops_efficiency=0.6),
        {
            "RTX3060Laptop": (6, 21.8, 336),
            "RTX3070Laptop": (8, 31.9, 448),
            "RTX3080Laptop": ((16, 8), 38, 448),
            "RTX4050Laptop": (6, 18, 192),
            "RTX4060Laptop": (8, 23.2, 256),
            "RTX4070Laptop": (8, 31.2, 256),
            "RTX4080Laptop": (12, 49.4, 432),
            "RTX4090Laptop": (16, 66, 576),
            "RTX5070Laptop": (8, 36, 384),
            "RTX5070TiLaptop": (12, 44, 672),
            "RTX5080Laptop": (16, 52, 896),
            "RTX5090Laptop": (24, 63.6, 896),
        },
    ),
    Kind(
        "workstation",
        Efficiency(flops_efficiency=0.6),
        {
            "RTXA2000": ((12, 6), 32, 288),
            "RTXA4000": (16, 76.7, 448),
            "RTXA5000": (24, 111.1, 768),
            "RTXA6000": (48, 154.8, 768),
            "TitanRTX": (24, 130.5, 672),
            "RTX5000": (16, 89.2, 448),
            "RTX6000": (24, 130.5, 672),
            "RTX8000": (48, 130.5, 672),
            "RTX2000Ada": (16, 48, 224),
            "RTX4000SFFAda": (20, 76.7, 280),
            "RTX4000Ada": (20, 106.9, 360),
            "RTX4500Ada": (24, 158.4, 432),
            "RTX5000Ada": (32, 261.1, 576),
            "RTX6000Ada": (48, 364.2, 960),
            "RTXPRO6000": (96, 503.8, 1792),
        },
    ),
    Kind(
        "data center",
        Efficiency(bandwidth_efficiency=0.7),
        {
            "P40": (24, 11.8, 347),
            "P100": (16, 18.7, 732),
            "T4": (16, 65, 320),
            "V100": ((16, 32), 125, 900),
            "A2": (16, 18, 200),
            "A10": (24, 125, 600),
            "A30": (24, 165, 933),
            "A40": (48, 149.7, 696),
            "L4": (24, 121, 300),
            "L40": (48, 181, 864),
            "L40S": (48, 362, 864),
            "A100": (40, 312, 1555),
            "A100-80GB": (80, 312, 2039),
            "H20": (96, 148, 4000),
            "H100": (80, 989, 3350),
            "H100PCIe": (80, 756, 2000),
            "H100NVL": (94, 835, 3900),
            "H200": (141, 989, 4800),
            "GH200": ((96, 144), 989, 4000),
            "B200": (180, 2250, 8000),
            "MI50": ((32, 16), 26.5, 1024),
            "MI100": (32, 184.6, 1229),
            "MI210": (64, 181, 1638),
            "MI250X": (128, 383, 3277),
            "MI300X": (192, 1307, 5300),
            "MI325X": (256, 1307, 6000),
            "MI355X": (288, 2516, 8000),
            "Gaudi2": (96, 432, 2450),
            "Gaudi3": (128, 1678, 3700),
        },
    ),
    Kind(
        "Radeon and Arc",
        Efficiency(bandwidth_efficiency=0.65),
        {
            "RX6800XT": (16, 41.5, 512),
            "RX6700XT": (12, 26.4, 384),
            "RX6900XT": (16, 46.1, 512),
            "RX7600": (8, 43.5, 288),
            "RX7800XT": (16, 74.6, 624),
            "RX7900XT": (20, 103, 800),
            "RX7900XTX": (24, 122.8, 960),
            "RX9060XT": ((16, 8), 103, 320),
            "RX9070": (16, 145, 640),
            "RX9070XT": (16, 195, 640),
            "W7900": (48, 122.6, 864),
            "R9700": (32, 191, 640),
            "ArcA770": ((16, 8), 131, 560),
            "ArcB570": (10, 101, 380),
            "ArcB580": (12, 116.5, 456),
            "ArcProB60": (24, 98.5, 456),
        },
    ),
    Kind(
        "shared memory",
        TYPICAL,
        {
            "DGXSpark": (128, 125, 273),
            "GB10": (128, 125, 273),
            "StrixHalo": ((128, 64, 96), 59.4, 256),
            "RyzenAIMax+395": ((128, 64, 96), 59.4, 256),
            "JetsonOrinNano": (8, 17, 102),
            "JetsonOrinNX": ((16, 8), 25, 102),
            "JetsonAGXOrin": ((64, 32), 42.5, 205),
            "JetsonThor": (128, 258, 273),
        },
    ),
    Kind(
        "Apple",
        Efficiency(flops_efficiency=0.58, step_s=0.0005, layer_s=0.00005),
        {
            "M1": ((16, 8), 2.6, 68),
            "M2": ((16, 8, 24), 3.6, 100),
            "M3": ((16, 8, 24), 4.1, 100),
            "M4": ((16, 24, 32), 4.3, 120),
            "M5": ((16, 24, 32), 17.2, 153),
            "M1Pro": ((16, 32), 5.2, 200),
            "M2Pro": ((16, 32), 6.8, 200),
            "M3Pro": ((18, 36), 7.4, 150),
            "M4Pro": ((48, 24, 64), 8.5, 273),
            "M5Pro": ((48, 24, 64), 34, 307),
        },
    ),
    Kind(
        "large Apple",
        Efficiency(flops_efficiency=0.58, bandwidth_efficiency=0.6, step_s=0.0005, layer_s=0.00005),
        {
            "M1Max": ((64, 32), 10.4, 400),
            "M2Max": ((64, 32, 96), 13.6, 400),
            "M3Max": ((64, 36, 48, 96, 128), 16.3, 400),
            "M4Max": ((64, 36, 48, 128), 18.4, 546),
            "M5Max": ((64, 36, 48, 128), 73.6, 614),
            "M1Ultra": ((64, 128), 20.8, 800),
            "M2Ultra": ((128, 64, 192), 27.2, 800),
            "M3Ultra": ((256, 96, 512), 32.7, 819),
        },
    ),
    Kind(
        "CPU",
        Efficiency(flops_efficiency=0.6, bandwidth_efficiency=0.7, step_s=0.0005, layer_s=0.00005),
        {
            "i5-12400": (32, 0.8, 76.8),
            "i7-12700": (32, 1.1, 76.8),
            "i7-13700": (64, 1.4, 89.6),
            "i9-13900K": (64, 2, 89.6),
            "i9-14900K": (64, 2.1, 89.6),
            "Ryzen5-5600X": (32, 0.85, 51.2),
            "Ryzen7-5800X": (32, 1.15, 51.2),
            "Ryzen9-5950X": (64, 2.2, 51.2),
            "Ryzen7-7800X3D": (64, 1.2, 83.2),
            "Ryzen9-7950X": (64, 2.4, 83.2),
            "Ryzen9-9950X": (64, 4.8, 89.6),
            "ThreadripperPRO7995WX": (512, 9.5, 332.8),
            "EPYC7763": (512, 5, 204.8),
            "EPYC9654": (768, 9.2, 460.8),
            "EPYC9755": (768, 22, 576),
            "Xeon8480+": (512, 7.2, 307.2),
            "Xeon6980P": (768, 16, 844.8),
            "RaspberryPi5": ((8, 4, 16), 0.077, 17),
        },
    ),
)
