"""What numbers of solved tasks say, and what they do not. Nothing here knows of runs, journals or models."""
