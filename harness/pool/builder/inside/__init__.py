"""Programs of the builder that run inside a sandbox."""
