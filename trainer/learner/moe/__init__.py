"""Mixtures of experts: how each family routes and lays out its experts, and the replay of recorded routing."""
