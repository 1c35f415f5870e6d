"""The slow and obvious way to train on rollouts: one sequence at a time, all logits, torch's own autograd."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.learner.attention_backends import backend_for
from trainer.learner.config import LearnerConfig
from trainer.learner.logprobs import LogProbHead
from trainer.learner.products import in_fp32, multiply_in_fp32
from trainer.learner.samples import TrainSample

IN_FP32 = LearnerConfig(dtype="float32")


class PlainEngine:
    """DeepSpeed's calls, without shards."""

    device = "cpu"

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, **inputs: Any) -> Any:
        return self.module(**inputs)


def load_plain(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as transformers computes it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").train()


def load_packed(folder: Path, config: LearnerConfig = IN_FP32, chunk: int = 5) -> Any:
    """The same model as the learner computes it."""
    from transformers import AutoModelForCausalLM

    packed, dtype = backend_for(config).name, getattr(torch, config.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=packed).train()
    model.lm_head = LogProbHead(model.lm_head, chunk, in_fp32(config))
    if in_fp32(config):
        multiply_in_fp32(model)
    return model


def sharpen(folder: Path, factor: float = 6.0) -> Path:
    """Scale the weights of a saved model, whose random ones are so small that its predictions are nearly uniform."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(factor)
    model.save_pretrained(folder)
    return folder


def plain_logprobs(model: Any, sample: TrainSample, temperature: float) -> torch.Tensor:
    """Log-probs [trained tokens] of one rollout."""
    logits = model(input_ids=torch.tensor([list(sample.token_ids)]), use_cache=False).logits[0].float()
    logprobs = torch.log_softmax(logits[:-1] / temperature, -1)
    taken = logprobs.gather(1, torch.tensor(list(sample.token_ids[1:]))[:, None])[:, 0]
    return taken[torch.tensor(list(sample.loss_mask[1:]), dtype=torch.bool)]


def plain_entropy(model: Any, sample: TrainSample, temperature: float) -> torch.Tensor:
    """Entropies [trained tokens] of the distributions that one rollout's tokens were drawn from."""
    logits = model(input_ids=torch.tensor([list(sample.token_ids)]), use_cache=False).logits[0].float()
    logprobs = torch.log_softmax(logits[:-1] / temperature, -1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return entropies[torch.tensor(list(sample.loss_mask[1:]), dtype=torch.bool)]


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Gradients by parameter name, tied parameters once."""
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same_gradients(have: dict[str, torch.Tensor], want: dict[str, torch.Tensor], tolerance: float) -> None:
    """Equal names, and a difference of at most `tolerance` of each parameter's largest gradient."""
    assert have.keys() == want.keys()
    for name in want:
        scale = want[name].abs().max().item()
        assert scale > 0, f"{name} has no gradient: the comparison would say nothing"
        assert (have[name] - want[name]).abs().max().item() <= tolerance * scale, name


def samples_like(groups: Sequence[tuple[int, int]], vocabulary: int = 256, seed: int = 0) -> list[TrainSample]:
    """Samples of (prompt length, attempts) groups with random ids, and answers of several turns."""
    from support.rollouts import make_rollout, make_sample

    generator = torch.Generator().manual_seed(seed)

    def ids(n: int) -> list[int]:
        return torch.randint(0, vocabulary, (n,), generator=generator).tolist()

    samples = []
    for number, (prompt_length, attempts) in enumerate(groups):
        prompt = ids(prompt_length)
        for attempt in range(attempts):
            rollout = make_rollout(
                f"s-{number}-{attempt}", f"g-{number}", prompt, turns=[ids(3 + 2 * attempt), ids(4)], between=ids(2)
            )
            advantage = float(torch.randn((), generator=generator))
            samples.append(make_sample(rollout, len(samples), advantage))
    return samples
