"""Runs the default agent of the OpenHands SDK on one instruction. Executed inside, by the agent's own Python.

It is given a JSON object on its input, {instruction, workspace, llm, max_iterations}, and writes one on its last line
of output. Only the SDK's public interface is used.
"""

import json
import os
import sys


def main() -> None:
    """Work until the agent finishes, gives up, or is refused."""
    given = json.load(sys.stdin)
    # Its commands inherit the input; they find none.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    from openhands.sdk import LLM, Conversation
    from openhands.tools.preset.default import get_default_agent

    agent = get_default_agent(llm=LLM(**given["llm"]), cli_mode=True)
    conversation = Conversation(
        agent=agent, workspace=given["workspace"], max_iteration_per_run=given["max_iterations"], visualizer=None
    )
    error = None
    try:
        conversation.send_message(given["instruction"])
        conversation.run()
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"[:500]
    status = str(conversation.state.execution_status.value)
    print(json.dumps({"type": "result", "status": status, "error": error}), flush=True)
    # Threads of its libraries may go on, and hold nothing that is still wanted.
    os._exit(0)


main()
