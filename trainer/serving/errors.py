"""What goes wrong in a replica."""


class ReplicaError(RuntimeError):
    """The engine died, refuses to serve, or answered with something that cannot be trusted."""


class PhaseError(ReplicaError):
    """Something was asked of a replica out of its order."""
