"""Pure functions of reinforcement learning: advantages, policy losses, aggregation, and how far two policies differ."""
