"""What goes wrong in a replica."""


class ReplicaError(RuntimeError):
    """The engine died, refuses to serve, or answered with something that cannot be trusted."""


class ReplicaLeaving(ReplicaError):
    """It takes no new requests, for it is about to end: another one is to be asked."""


class PhaseError(ReplicaError):
    """Something was asked of a replica out of its order."""
