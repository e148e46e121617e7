"""Every option of a run, declared once, read from the command line, YAML or Python alike."""

from conveyor.options.options import Options, Spec, find, section_names, specs

__all__ = ["Options", "Spec", "find", "section_names", "specs"]
