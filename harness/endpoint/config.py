"""Which endpoint, and what it cannot tell us."""

import os
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

KEY_VARIABLE = "TESTGRAD_ENDPOINT_KEY"
FALLBACK_KEY_VARIABLE = "OPENAI_API_KEY"


class EndpointConfig(BaseModel):
    """A policy that is served elsewhere. Its key is read from the environment, and never part of a config."""

    # an address that is refused may hold a password, which pydantic would repeat
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str = Field(description="Address of an OpenAI-compatible API, up to and with /v1")
    model: str = Field(min_length=1, description="Name under which the endpoint serves the policy")
    tokenizer: Path | None = Field(
        None,
        description="Folder of the model's tokenizer: completions are asked with token ids then, and the server (vLLM) "
        "must tell those that it sampled. Unset, the endpoint is asked in chat, and tells neither ids nor log-probs",
    )
    window: int | None = Field(
        None,
        ge=16,
        description="Its context length in tokens; unset, the server is asked, and 32768 if it does not say",
    )
    key_variable: str = Field(
        KEY_VARIABLE,
        pattern=r"^[A-Za-z_]\w*$",
        description=f"Environment variable with the key; {FALLBACK_KEY_VARIABLE} if that one is unset and the "
        "address is https or this machine's",
    )
    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="Field of chat requests that limits an answer's length; newer OpenAI models know one"
    )
    request_sec: float = Field(600.0, gt=0, description="Longest wait for one answer, in seconds")
    attempts: int = Field(4, ge=1, description="Tries of a request that the server could not answer: 429, 5xx, no word")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if "@" in url:
            raise ValueError("the address holds a password; put the key into the environment instead")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address; write http://host:port/v1")
        if parts.query or parts.fragment:
            raise ValueError("the address ends in a query (?…), to which no path can be added; end it in /v1")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _has_tokenizer(self) -> Self:
        if self.tokenizer is not None and not self.tokenizer.expanduser().is_dir():
            raise ValueError(f"tokenizer is {str(self.tokenizer)!r}, which is no folder; give one with tokenizer.json")
        return self

    @property
    def key(self) -> str | None:
        """The key in the environment, None if there is none: servers of one's own want none.

        The fallback is there for other programs, so it is not sent in the clear to another machine.
        """
        falls_back = self.key_variable == KEY_VARIABLE and (self.is_local or self.url.startswith("https://"))
        return os.environ.get(self.key_variable) or (os.environ.get(FALLBACK_KEY_VARIABLE) if falls_back else None)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
