"""`conveyor devices`: the cores and accelerators of this machine."""

import argparse
import json
import os
from typing import Any

HELP = "List the processors, accelerators and memory that a run could use."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="One JSON object.")
    parser.add_argument("-l", "--list", action="store_true", help="One line per device.")


def run(arguments: argparse.Namespace) -> int:
    found = devices()
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    for device in found["devices"]:
        print(f"{device['id']:<8} {device['name']}")
    if not arguments.list:
        memory = found["memory_gib"]
        print(f"memory   {memory:.1f} GiB" if memory else "memory   unknown")
        nodes = " | ".join(",".join(map(str, node)) for node in found["numa_nodes"])
        print(f"cores    {found['cores']} usable, by NUMA node: {nodes}")
        print(f"torch    {found['torch']}, backends: {', '.join(found['backends'])}")
        print(f"features {', '.join(found['features'])}")
        print(f"half     {', '.join(f'{name} {how}' for name, how in found['half'].items())}")
        for name, about in found["kernels"].items():
            print(f"kernel   {name:<11}{about}")
    return 0


def devices() -> dict[str, Any]:
    """Cores of this process, accelerators, memory, and the back ends for communication between workers."""
    import torch
    import torch.distributed as dist

    from conveyor.launch.cores import available_cores, numa_nodes
    from conveyor.measure.processor import processor as here
    from conveyor.numerics.half_policy import fast_half
    from conveyor.numerics.native import compile as recipe

    cores, processor = available_cores(), here().name
    listed = [{"id": f"cpu:{core}", "name": processor} for core in cores]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        listed.append({"id": f"cuda:{index}", "name": f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"})
    backends = [name for name in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{name}_available")()]
    return {
        "devices": listed,
        "cores": len(cores),
        "numa_nodes": [list(node) for node in numa_nodes(cores)],
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "torch": torch.__version__,
        "backends": backends,
        "features": list(here().features),
        "half": {
            str(half).removeprefix("torch."): "native"
            if fast_half(torch.device("cpu"), half)
            else "emulated in float32"
            for half in (torch.bfloat16, torch.float16)
        },
        "kernels": {name: _kernel(name) for name in recipe.SOURCES},
    }


def _kernel(name: str) -> str:
    """The instruction set that a kernel is compiled for, or why it is off."""
    from conveyor.numerics.native import build

    path, about = build.find(name)
    return about if path is not None else f"off: {about}"
