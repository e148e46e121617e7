"""The dialect of the PopART programs."""
