"""Where hostile code runs: isolated commands over a workspace that only the host reads back."""

from harness.sandbox import bubblewrap as _bubblewrap  # noqa: F401  (registers the backend)
from harness.sandbox import docker as _docker  # noqa: F401  (registers the backend)
from harness.sandbox import kubernetes as _kubernetes  # noqa: F401  (registers the backend)
from harness.sandbox.base import (
    SANDBOXES,
    WORKSPACE,
    ExecResult,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    create_sandbox,
    register_sandbox,
    require_isolation,
    with_image,
)
from harness.sandbox.leftovers import sweep
from harness.sandbox.tree import Tree, TreeLimits, WorkspaceError

__all__ = [
    "SANDBOXES",
    "WORKSPACE",
    "ExecResult",
    "Sandbox",
    "SandboxConfig",
    "SandboxError",
    "SandboxUnavailable",
    "Tree",
    "TreeLimits",
    "WorkspaceError",
    "create_sandbox",
    "register_sandbox",
    "require_isolation",
    "sweep",
    "with_image",
]
