"""Planning: what a model costs, where to cut it, how to lay it out, and a simulation of a cluster."""
