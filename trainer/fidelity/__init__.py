"""Whether the trainer's probabilities still belong to what the engine sampled, and what is wrong when they do not."""
