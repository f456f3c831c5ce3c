"""Outputs of the vendors' tools, as published by the people who recorded them; serial numbers are left out."""

from __future__ import annotations

NVIDIA = """\
NVIDIA A800-SXM4-80GB, 81920, 81176
NVIDIA GeForce RTX 5070 Ti, 16303, 14109
"""
"""Rows of ``nvidia-smi --query-gpu=name,memory.total,memory.free --format=csv`` of two machines, without the units that
``nounits`` leaves out, as logs in public repositories have them."""

NVIDIA_GB10 = "NVIDIA GB10, [N/A], [N/A]\n"
"""The fields of https://github.com/XuehaiPan/nvitop/pull/208, recorded on a DGX Spark with driver 580.173.02."""

ROCM = """\
{
  "card0": {
    "GPU use (%)": "0",
    "VRAM Total Memory (B)": "21458059264",
    "VRAM Total Used Memory (B)": "27856896",
    "Card Series": "Radeon RX 7900 XT",
    "Card Model": "0x744c",
    "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "Card SKU": "D70401XT",
    "Subsystem ID": "0x471e",
    "Device Rev": "0xcc",
    "Node ID": "1",
    "GUID": "26967",
    "GFX Version": "gfx1100"
  }
}
"""
"""Of ``rocm-smi --showproductname --showuse --showmeminfo vram --json``:
https://github.com/marimo-team/marimo/issues/9237."""

AMD_SMI = """\
[
  {
    "gpu": 0,
    "asic": {
      "market_name": "AMD Instinct MI300X",
      "vendor_id": "0x1002",
      "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
      "device_id": "0x74a1",
      "target_graphics_version": "gfx942"
    },
    "vram": {
      "type": "HBM3",
      "vendor": "N/A",
      "size": {
        "value": 196592,
        "unit": "MB"
      }
    }
  }
]
"""
"""The fields of ``amd-smi static --asic --vram --json``, as its command line writes them
(https://github.com/ROCm/rocm-systems, projects/amdsmi/amdsmi_cli), with the values of an MI300X."""

APPLE = """\
{
  "SPDisplaysDataType" : [
    {
      "_name" : "Apple M3 Pro",
      "spdisplays_mtlgpufamilysupport" : "spdisplays_metal3",
      "spdisplays_ndrvs" : [
        {
          "_name" : "DELL U2722DE",
          "_spdisplays_pixels" : "2560 x 1440",
          "spdisplays_main" : "spdisplays_yes",
          "spdisplays_online" : "spdisplays_yes"
        }
      ],
      "spdisplays_vendor" : "sppci_vendor_Apple",
      "sppci_bus" : "spdisplays_builtin",
      "sppci_cores" : "14",
      "sppci_device_type" : "spdisplays_gpu",
      "sppci_model" : "Apple M3 Pro"
    }
  ]
}
"""
"""Of ``system_profiler SPDisplaysDataType -json``, shortened: https://github.com/timmo001/system-bridge/pull/3408."""

VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 4096 bytes)
Pages free: 334212.
Pages active: 1450252.
Pages inactive: 1367584.
Pages speculative: 81968.
Pages throttled: 0.
Pages wired down: 794478.
Pages purgeable: 377078.
"Translation faults": 1584392481.
Pages copy-on-write: 316685071.
Pages zero filled: 358257445.
Pages reactivated: 9976919.
Pages purged: 2557552.
File-backed pages: 597869.
Anonymous pages: 2301935.
"""
"""Of ``vm_stat``: https://apple.stackexchange.com/questions/347037."""
