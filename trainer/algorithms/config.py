"""Which algorithm turns rewards into gradients."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.algorithms.kl_config import KLConfig
from trainer.algorithms.rollout_correction.config import RolloutCorrectionConfig


class AlgorithmConfig(BaseModel):
    """Advantage estimator, policy loss and aggregation. The defaults of clipping are GSPO's, of order 1e-4."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    adv_estimator: str = Field("grpo", description="Advantage estimator; `testgrad algorithms` lists them")
    norm_adv_by_std: bool = Field(True, description="GRPO divides by the group's standard deviation; Dr.GRPO does not")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount from one sampled token to the next")
    lam: float = Field(1.0, ge=0, le=1, description="GAE's lambda")
    reward_weights: dict[str, float] = Field({}, description="GDPO's weight of each named reward; 1 if not named")
    gpg_f_norm: float = Field(1.0, gt=0, description="GPG's divisor of the advantage")

    policy_loss: str = Field("gspo", description="Policy loss; `testgrad algorithms` lists them")
    clip_ratio_low: float = Field(3e-4, gt=0, lt=1, description="The ratio is clipped below 1 - this")
    clip_ratio_high: float = Field(4e-4, gt=0, description="The ratio is clipped above 1 + this")
    clip_ratio_c: float = Field(
        3.0, gt=1, description="Dual clip of ppo, where the advantage is negative; largest ratio of dppo_tv and dppo_kl"
    )
    sapo_tau_pos: float = Field(1.0, gt=0, description="SAPO's temperature where the advantage is positive")
    sapo_tau_neg: float = Field(1.05, gt=0, description="SAPO's temperature where the advantage is negative")
    clip_cov_ratio: float = Field(2e-4, gt=0, lt=1, description="Clip-Cov: share of tokens that lose their gradient")
    clip_cov_low: float = Field(1.0, description="Clip-Cov: tokens of at least this covariance may be chosen")
    clip_cov_high: float = Field(5.0, description="Clip-Cov: tokens of at most this covariance may be chosen")
    kl_cov_ratio: float = Field(2e-4, gt=0, lt=1, description="KL-Cov: share of tokens that get the KL penalty")
    kl_cov_coef: float = Field(1.0, gt=0, description="KL-Cov: weight of the penalty")

    loss_agg: str = Field("seq-mean-token-mean", description="How token losses become one number")
    loss_horizon: int | None = Field(
        None, ge=1, description="Constant divisor of seq-mean-token-sum-norm, in tokens; the longest answer, say"
    )
    entropy_coeff: float = Field(0.0, ge=0, description="Weight of the entropy bonus in the loss")
    value_clip: float = Field(0.5, gt=0, description="The critic's prediction moves at most this far a step (GAE)")
    kl: KLConfig = Field(KLConfig(), description="Distance to the reference policy")
    rollout_correction: RolloutCorrectionConfig = Field(
        RolloutCorrectionConfig(), description="What is done where the engine's probabilities differ from the trainer's"
    )

    @property
    def score_columns(self) -> list[str]:
        """Columns of sampled tokens that the learner must compute before the advantages."""
        from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS

        needed = set(ADVANTAGE_ESTIMATORS[self.adv_estimator].needs) - {"greedy_baseline"}
        if self.kl.place != "none":
            needed.add("ref_logprobs")
        if self.kl.in_reward:
            needed.add("old_logprobs")
        return sorted(needed)

    @property
    def needs_greedy_trial(self) -> bool:
        """Whether each group has one more trial, sampled greedily, as a baseline."""
        from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS

        return "greedy_baseline" in ADVANTAGE_ESTIMATORS[self.adv_estimator].needs

    @model_validator(mode="after")
    def _known(self) -> Self:
        from trainer.algorithms.registry import (
            ADVANTAGE_ESTIMATORS,
            KL_ESTIMATORS,
            LOSS_AGGREGATIONS,
            POLICY_LOSSES,
            load_builtin,
        )

        load_builtin()
        choices = (
            ("adv_estimator", self.adv_estimator, ADVANTAGE_ESTIMATORS),
            ("policy_loss", self.policy_loss, POLICY_LOSSES),
            ("loss_agg", self.loss_agg, LOSS_AGGREGATIONS),
            ("kl.estimator", self.kl.estimator, KL_ESTIMATORS),
        )
        for field, value, registry in choices:
            if value not in registry:
                raise ValueError(f"{field} is {value!r}; known are {', '.join(sorted(registry))}")
        return self
