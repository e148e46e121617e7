"""Scripts of the contestants. Each is self-contained, so that it also runs in an environment without Conveyor."""
