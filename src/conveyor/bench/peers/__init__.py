"""The programs that benchmarks compare. Each is self-contained, so that it runs in environments without Conveyor."""
