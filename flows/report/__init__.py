"""Reports on runs: what the journal says (`reader`), drawn (`figures`), in one HTML file that needs nothing else."""
