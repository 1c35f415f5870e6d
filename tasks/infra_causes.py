"""What makes infrastructure fail, by what the failures say: the likely causes, and what mends each."""

import re
from collections import Counter
from dataclasses import asdict, dataclass

_MAX_ERROR = 200
_VARYING = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+(\.\d+)?", re.IGNORECASE)

# words of an infrastructure error, what they mean, and the mend
_ERRORS = (
    (r"image|pull|manifest|registry", "images cannot be had", "pull one by hand where trials run; testgrad check"),
    (r"no space|disk quota|enospc", "a disk is full", "free space where trials and sandboxes are kept; testgrad clean"),
    (r"memory|oom|exit(ed)? (code |status )?137", "memory runs out", "lower rollout.concurrency, or give more memory"),
    (r"too many open files|emfile", "open files run out", "ulimit -n 65536, or lower rollout.concurrency"),
    (r"timed? ?out|timeout|deadline|did not start", "the machine is overloaded, or what it waits for is down",
     "lower rollout.concurrency, or raise the budget that the message names"),
    (r"proxy|policy|engine|replica|connection|refused", "the engine or the proxy does not answer",
     "read logs/EXPERIMENT_vllm.log"),
    (r"sandbox|container|pod|namespace|bwrap|docker|kube", "sandboxes break", "testgrad doctor"),
)  # fmt: skip


@dataclass(frozen=True)
class LikelyCause:
    """A cause, what speaks for it, and what mends it."""

    cause: str
    evidence: str
    mend: str

    @property
    def text(self) -> str:
        return f"{self.cause} ({self.evidence}); {self.mend}"

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def infrastructure_causes(errors: Counter[str], most: int = 3) -> list[LikelyCause]:
    """Causes of infrastructure failures by their texts, the commonest first; numbers and ids in them do not count."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for text, count in errors.items():
        kinds.setdefault(_VARYING.sub("#", text)[:_MAX_ERROR], []).append((text, count))
    total = sum(errors.values())
    ranked = sorted(kinds.values(), key=lambda texts: -sum(count for _, count in texts))
    causes = []
    for texts in ranked[:most]:
        example = texts[0][0].splitlines()[0][:_MAX_ERROR] if texts[0][0].strip() else "no text"
        cause, mend = _meaning(example)
        causes.append(LikelyCause(cause, f"{sum(c for _, c in texts)} of {total} say: {example}", mend))
    return causes


def _meaning(text: str) -> tuple[str, str]:
    for words, cause, mend in _ERRORS:
        if re.search(words, text, re.IGNORECASE):
            return cause, mend
    return "something breaks that the policy cannot cause", "read one of these trials: testgrad trials RUN"
