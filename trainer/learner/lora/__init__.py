"""LoRA: the base stays as it is, and small matrices beside its linear layers are trained.

A layer computes W x + s B A x, with s = alpha / rank. Without its adapters the policy is the base, so a frozen
reference costs no second copy.
"""
