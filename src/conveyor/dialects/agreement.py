"""Values given both to a launcher and to the program that it starts: replicas, and devices of each replica."""

import dataclasses

from conveyor.dialects.reader import Values
from conveyor.dialects.translation import Launcher
from conveyor.errors import UserError


def agreed(launcher: Launcher, values: Values, *, replicas_given: bool) -> tuple[Launcher, list[str]]:
    """The launcher with the numbers that it left to the program filled in, and notes about them; a contradiction is an error."""
    devices, replicas, notes = _devices(values), _replicas(values), list[str]()
    if devices and launcher.devices_per_replica not in (0, devices):
        key = next((key for key in ("shards", "device_mapping", "pipeline_splits") if key in values.rows), "shards")
        raise UserError(
            f"--ipus-per-replica {launcher.devices_per_replica} contradicts the program, whose replicas have {devices} "
            f"{'device' if devices == 1 else 'devices'} each ({values.spelling(key)}): change one of them"
        )
    if devices > 1 and not launcher.devices_per_replica:
        notes.append(f"no --ipus-per-replica: each replica has the {devices} devices that the program gives it")
    if replicas > 1 and not replicas_given:
        if replicas % launcher.instances:
            raise UserError(
                f"{launcher.instances} instances cannot share the program's {replicas} replicas evenly: change "
                "--num-instances, or give --num-replicas"
            )
        launcher = dataclasses.replace(launcher, replicas=replicas)
    return launcher, notes


def _replicas(values: Values) -> int:
    """The replicas given to the program; 0 when none were."""
    key = next((key for key in ("replicas", "num_replicas") if key in values.rows and values.has(key)), None)
    return int(values[key] or 0) if key else 0


def _devices(values: Values) -> int:
    """The devices of one replica as the program has them; 0 for scripts that take them from a stored run."""
    if "shards" in values.rows:
        return int(values["shards"])
    if "pipeline_splits" not in values.rows:
        return 0
    mapping = values["device_mapping"] if "device_mapping" in values.rows else None
    names = [name for name in values["pipeline_splits"] or () if name and name != "..."]
    return max(mapping) + 1 if mapping else len(names) + 1
