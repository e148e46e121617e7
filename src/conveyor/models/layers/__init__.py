"""The layers that the networks are built from: convolutions, norms, activations, random depth."""
