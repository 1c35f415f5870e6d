"""A cluster simulated from measured or stated figures: what modes and node splits would cost before any is rented."""
