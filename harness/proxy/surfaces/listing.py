"""The list of models, which is the policy alone, as either vendor's clients expect it."""

import datetime
from typing import Any

from anthropic.types import ModelInfo
from openai.types import Model

from harness.proxy.surfaces.base import MODEL_ID

_EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)


def models(*, anthropic: bool = False) -> dict[str, Any]:
    """The list; `anthropic` for clients that send an `anthropic-version` header."""
    if anthropic:
        info = ModelInfo.construct(id=MODEL_ID, type="model", display_name=MODEL_ID, created_at=_EPOCH)
        data = [info.model_dump(mode="json", exclude_unset=True)]
        return {"data": data, "has_more": False, "first_id": MODEL_ID, "last_id": MODEL_ID}
    policy = Model(id=MODEL_ID, object="model", created=0, owned_by="testgrad")
    return {"object": "list", "data": [policy.model_dump(mode="json")]}
