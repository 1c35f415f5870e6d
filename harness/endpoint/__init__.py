"""A policy that somebody else serves, behind an OpenAI-compatible address: to score or to collect with, never to train.

`tokens` are the real ones where the server tells token ids and takes them (vLLM's completions); behind `chat`, which
every server has, there are none: what the proxy then counts are pieces of text, and log-probs are unknown.
"""

from harness.endpoint.client import EndpointError, EndpointRefused
from harness.endpoint.config import EndpointConfig
from harness.endpoint.policy import Endpoint, open_endpoint

__all__ = ["Endpoint", "EndpointConfig", "EndpointError", "EndpointRefused", "open_endpoint"]
