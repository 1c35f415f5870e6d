"""Scaffolds: the agent programs that turn model output into actions. Importing this registers the built-in ones."""

from harness.scaffolds import edit as edit
