"""What earlier steps told the sampler, read from the journal: a resumed run draws what it would have drawn."""

from harness.pool.difficulty import count_passes, read_trials
from harness.pool.sampler import GroupResult, SamplerConfig, SamplerState, tell
from tasks.journal import step_label, write_text
from tasks.run import RunRef

_FILE = "sampler.json"


def state_before(run: RunRef, step: int, config: SamplerConfig) -> SamplerState:
    """The sampler's state when step `step` draws; each step's is kept, so that only newer ones are read again.

    Only an adaptive sampler learns from earlier steps. Trials lost to infrastructure tell nothing about a task.
    """
    if config.sampler != "adaptive":
        return SamplerState()
    state, told = SamplerState(), 0
    for earlier in range(step - 1, 0, -1):
        stored = run.journal.stage_dir(step_label(earlier)) / _FILE
        if stored.is_file():
            state, told = SamplerState.from_json(stored.read_text()), earlier
            break
    for earlier in range(told + 1, step):
        label = step_label(earlier)
        counts = count_passes(read_trials(run.journal.trials_dir(label)))
        results = [GroupResult(task_id, count.passes, count.trials) for task_id, count in sorted(counts.items())]
        state = tell(state, earlier, results, config)
        write_text(run.journal.stage_dir(label) / _FILE, state.to_json())
    return state
