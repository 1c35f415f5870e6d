"""The order of a form's fields on Prefect's page."""

from typing import Any


def in_order(schema: dict[str, Any]) -> None:
    """Number the fields of a JSON schema as they stand, for a model's `json_schema_extra`.

    Prefect's page goes by these numbers. Without them it shows what the database gives back, and PostgreSQL keeps an
    object's keys by their length.
    """
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position
