"""Showing and recording a run: progress, log lines, CSV files, trackers, profiles. Modules here never import torch on their own."""
