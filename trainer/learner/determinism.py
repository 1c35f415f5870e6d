"""The same bits from the same batch, which replaying an update rests on."""

import torch


def same_bits_each_time() -> None:
    """Have torch compute on CPUs, in this process, what does not depend on which thread comes first.

    A prompt's last hidden state is asked for by every answer to it. Threads would add up what the answers send back in
    the order in which they come, which differs in the last bits from one time to the next.
    """
    torch.use_deterministic_algorithms(True)
    # nothing here reads memory that it has not written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
