"""From a batch of 8-bit images to the network's input: augmentation, normalisation, mixing."""
