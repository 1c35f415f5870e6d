"""What DeepSpeed's universal checkpoint leaves to be mended; real ones are loaded in tests/integration."""

from types import SimpleNamespace

import torch

from trainer.learner import reshard


def test_each_parameter_counts_its_own_steps_where_it_lies(tmp_path, monkeypatch):
    """A fused optimizer on a GPU reads the count through the parameter's device."""
    parameters = [torch.nn.Parameter(torch.zeros(2, device=device)) for device in ("meta", "cpu")]
    adam = torch.optim.AdamW([{"params": [parameter], "weight_decay": i} for i, parameter in enumerate(parameters)])

    def load_checkpoint(folder, tag):
        shared = torch.tensor(3.0)  # read from a file into host memory
        for parameter, group in zip(parameters, adam.param_groups, strict=True):
            adam.state[parameter] = {"step": shared}
            group["weight_decay"] = 0

    engine = SimpleNamespace(
        optimizer=SimpleNamespace(optimizer=adam), _config=SimpleNamespace(), load_checkpoint=load_checkpoint
    )
    monkeypatch.setattr(reshard, "_convert", lambda folder, scratch: scratch.mkdir())
    reshard.load(engine, tmp_path, tmp_path / "scratch")
    steps = [adam.state[parameter]["step"] for parameter in parameters]
    assert [step.device.type for step in steps] == ["meta", "cpu"]
    steps[1] += 1
    assert steps[1] == 4 and steps[0] is not steps[1]
    assert [group["weight_decay"] for group in adam.param_groups] == [0, 1]
    assert not (tmp_path / "scratch").exists()
