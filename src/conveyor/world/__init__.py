"""Communication between the workers of a run: the contract, and sums in the order of one tree."""
