"""Starting the workers of a run: on this machine, on many machines, or joining what another launcher started."""
