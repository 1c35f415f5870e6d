"""Scaffolds: the agent programs that turn model output into actions. Importing this registers the built-in ones."""

from harness.scaffolds import claude_code as claude_code
from harness.scaffolds import codex as codex
from harness.scaffolds import command as command
from harness.scaffolds import edit as edit
from harness.scaffolds import mini as mini
from harness.scaffolds import mixed as mixed
from harness.scaffolds import opencode as opencode
from harness.scaffolds import openhands as openhands
from harness.scaffolds import qwen_code as qwen_code
from harness.scaffolds import terminus as terminus
