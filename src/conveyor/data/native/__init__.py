"""C functions compiled once for this processor: a crop of a JPEG, and shifting, mirroring and normalising a batch."""
