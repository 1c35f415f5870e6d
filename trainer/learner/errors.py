"""What can go wrong in the learner."""


class LearnerError(RuntimeError):
    """The learner was asked for an update that does not follow from its state, or cannot be what it claims."""


class RendezvousError(LearnerError):
    """The ranks did not meet; another try may succeed."""


class NonFiniteError(LearnerError):
    """Gradients were infinite or not a number too many times in a row."""
