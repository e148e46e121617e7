"""A run as numbers: everything that follows from the options, computed once (no torch here).

`--dry-run` prints a `RunSpec`, the worker runs it. Nothing in it depends on files on the disk, except for image folders
whose images have to be counted.
"""

from conveyor.spec.checks import random_weights as random_weights
from conveyor.spec.resolving import resolve as resolve
from conveyor.spec.run_spec import OWN_MODEL as OWN_MODEL
from conveyor.spec.run_spec import RunSpec as RunSpec
