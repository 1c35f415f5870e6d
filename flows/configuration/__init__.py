"""A run's configuration from its layers, and the answer to where each value came from."""

from flows.configuration.layers import Layer, Origin
from flows.configuration.resolve import Resolved, load_layers, load_run, resolve

__all__ = ["Layer", "Origin", "Resolved", "load_layers", "load_run", "resolve"]
