"""The logical topology of a run: how an update's samples are cut, replicated and staged."""

from dataclasses import dataclass

from conveyor.options.field import option
from conveyor.options.units import size_in_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What one weight update consists of. These numbers define the run; the layout only says where it runs."""

    micro_batch_size: int = option(32, "Samples of one forward and backward pass.", minimum=1, aliases=("batch_size",))
    accumulation: int | None = option(
        None, "Micro-batches accumulated by each replica before an update; default 1.", minimum=1
    )
    global_batch_size: int | None = option(None, "Samples per update, instead of --accumulation.", minimum=1)
    replicas: int = option(1, "Data-parallel copies.", minimum=1)
    stages: int | None = option(None, "Pipeline stages; default: number of splits + 1.", minimum=1, aliases=("shards",))
    splits: tuple[str, ...] = option(
        (),
        "First layer of each further stage (names as `conveyor models show` prints them, or regular expressions), or auto.",
    )
    pipeline_schedule: str = option(
        "gpipe",
        "gpipe: all forwards, then all backwards; 1f1b: alternating; sequential: one micro-batch at a time; interleaved-1f1b, "
        "looped-bfs, zero-bubble: several stages for each worker in turn.",
        metavar="NAME",
        choices=("gpipe", "1f1b", "sequential", "interleaved-1f1b", "looped-bfs", "zero-bubble"),
        changes_result=False,
    )
    device_mapping: tuple[int, ...] = option(
        (), "Worker of the lane that runs each stage; default: one each.", minimum=0, changes_result=False
    )
    split_include: tuple[str, ...] = option(
        (), "Automatic splits only at names containing one of these.", changes_result=False
    )
    split_exclude: tuple[str, ...] = option(
        (), "Automatic splits never at names containing one of these.", changes_result=False
    )
    pass_slots: str = option(
        "auto",
        "Slots (micro-batches) that share one pass through the network, or auto: some when they are small. Part of the run: the "
        "same on every layout.",
        metavar="N|auto",
    )
    recompute: tuple[str, ...] = option(
        (),
        "Recompute activations in the backward pass: stage, block, or regular expressions over module names.",
        changes_result=False,
    )

    @property
    def devices_per_replica(self) -> int:
        """Devices of one replica: stages may share one."""
        return max(self.device_mapping) + 1 if self.device_mapping else self.stages or len(self.splits) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Where the run runs; never what it computes."""

    layout: str = option(
        "auto", "Worker processes as LANESxDEPTH, such as 2x1, or auto.", metavar="LANESxDEPTH", changes_result=False
    )
    device: str = option("auto", "auto, cpu or cuda.", choices=("auto", "cpu", "cuda"), changes_result=False)
    device_ids: tuple[int, ...] = option((), "Devices to use; default: all.", minimum=0, changes_result=False)
    validation_device_ids: tuple[int, ...] = option(
        (), "Devices on which training validates; default: its own.", minimum=0, changes_result=False
    )
    threads: int | None = option(
        None,
        "Threads of each worker; default: the cores divided among the groups of an update. A run that goes on keeps its number.",
        minimum=1,
        changes_result=False,
    )
    bucket_size: str = option(
        "25MiB",
        "Gradients are reduced in buckets of this size while backward runs.",
        changes_result=False,
        read=size_in_bytes,
    )
    pipelined_validation: bool = option(
        False, "Validate with the training's stages instead of folded.", changes_result=False
    )
    max_restarts: int = option(
        3, "How often a job goes on from its last checkpoint after a worker died.", minimum=0, changes_result=False
    )
    grace: int = option(
        20,
        "Within this time after SIGTERM, SIGUSR1, SIGHUP or Ctrl-C the run is saved; an update that takes longer is given up.",
        unit="s",
        minimum=1,
        changes_result=False,
    )
