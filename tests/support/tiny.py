"""The tiny tokenizer and model of the benches."""

from bench.tiny import CHATML, SMOLLM, THINKING, tiny_model, tiny_tokenizer

__all__ = ["CHATML", "SMOLLM", "THINKING", "tiny_model", "tiny_tokenizer"]
