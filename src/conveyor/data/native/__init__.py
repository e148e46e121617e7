"""C functions compiled once for this processor: a crop of a JPEG, and all that is done to a batch of small images."""
