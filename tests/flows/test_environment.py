"""Where MLflow is: an address that is stored with every flow run."""

import pytest

from flows.environment import TrackingError, tracking_uri


def test_an_address_with_a_password_is_refused_and_not_told(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:hunter22@mlflow.example")
    with pytest.raises(TrackingError, match="MLFLOW_TRACKING_PASSWORD") as refused:
        tracking_uri(tmp_path)
    assert "hunter22" not in str(refused.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    assert tracking_uri(tmp_path) == "https://mlflow.example"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
