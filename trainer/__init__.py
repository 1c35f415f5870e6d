"""All that learns, and nothing of sandboxes."""
