"""A Docker engine and a base image where there is neither: for tests, and to begin with."""
