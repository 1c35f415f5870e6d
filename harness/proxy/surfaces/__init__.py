"""The APIs that agents speak to the proxy. `registry` has them all; `base` is cheap to import."""
