"""Sequence parallelism (DeepSpeed-Ulysses): one row of tokens over several ranks.

The ranks of a sequence group, `learner.sp_size` of them, compute the same row. Each has its part of the tokens, of
equal length, in all that a model does token by token; for attention they exchange tokens for heads, so that each sees
all tokens of the row in its part of the heads. What the head says of the trained tokens is then told to all of the
group, and each computes the loss of the whole row: losses over sequences stay what they are, and since a rank's
gradient goes through its own tokens, gradients of the ranks add up to the row's as without.
"""
