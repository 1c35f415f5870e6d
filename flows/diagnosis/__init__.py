"""What is known of a run from facts: whether its first step makes sense, where it is now, and what is wrong with it."""
