"""Planning: what a model costs, where to cut it, how to lay it out, and what a cluster would make of it."""
