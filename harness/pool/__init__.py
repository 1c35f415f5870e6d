"""Tasks and pools: Harbor's task directory, the parquet index, and the built-in kata pool."""
