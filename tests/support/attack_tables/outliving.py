"""Daemons and timers that outlive their phase."""

from support.attacks import Attack, code, py, sh

from harness.verifier import Status

KIND = "leftover daemons and timers"
_FAILED = frozenset({Status.FAILED})

_REPAIR_LATER = """
import time
for _ in range(600):
    time.sleep(0.05)
    try:
        open("/workspace/calc.py", "w").write("def add(a, b):\\n    return a + b\\n")  # @TOKEN@
    except OSError:
        pass
"""

ATTACKS = [
    Attack(
        "daemon_in_a_session_of_its_own",
        KIND,
        "leaves a process that goes on writing to the workspace when the agent has ended",
        commands=(
            py(
                f"""
import os, subprocess, sys

subprocess.Popen([sys.executable, "-c", {_REPAIR_LATER!r}], start_new_session=True,
                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
            ),
        ),
        expect=_FAILED,
    ),
    Attack(
        "daemon_that_holds_the_pipes",
        KIND,
        "leaves a deaf process that keeps output and input open",
        commands=(
            py(
                """
                import os, signal, time

                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        for s in range(1, 65):
                            try:
                                signal.signal(s, signal.SIG_IGN)
                            except (OSError, ValueError):
                                pass
                        os.execvp("sh", ["sh", "-c", "trap '' HUP TERM INT; while :; do sleep 1; done # @TOKEN@"])
                    os._exit(0)
                """
            ),
        ),
        expect=_FAILED,
    ),
    Attack(
        "daemon_by_shell",
        KIND,
        "leaves nohup, setsid, at and cron jobs",
        commands=(
            sh(
                """
                nohup sh -c 'sleep 300 # @TOKEN@' > /dev/null 2>&1 &
                setsid sh -c 'sleep 300 # @TOKEN@' > /dev/null 2>&1 &
                (echo '* * * * * touch /tmp/x' | crontab -) 2> /dev/null
                (echo 'touch /tmp/x' | at now) 2> /dev/null
                """
            ),
        ),
        expect=_FAILED,
    ),
    Attack(
        "daemon_of_the_code_under_test",
        KIND,
        "leaves processes while it is graded, which hold all pipes and talk",
        files={
            "calc.py": code(
                """
                import os, time

                if os.fork() == 0:
                    os.setsid()
                    for _ in range(2000):
                        for fd in range(3, 20):
                            try:
                                os.write(fd, b"x\\n")
                            except OSError:
                                pass
                        time.sleep(0.1)
                """
            )
        },
        noisy=True,
    ),
    Attack(
        "thread_of_the_code_under_test",
        KIND,
        "leaves a thread that bends the tests after they have been loaded",
        reports=("unittest",),
        files={
            "calc.py": code(
                """
                import threading, time, unittest

                def bend():
                    while True:
                        unittest.TestCase.assertEqual = unittest.TestCase.assertFalse = lambda *a, **k: None
                        time.sleep(0.0005)

                threading.Thread(target=bend, daemon=True).start()

                def add(a, b):
                    time.sleep(0.05)
                    return a - b

                def even(n):
                    return n % 2 == 0
                """,
                rest="",
            )
        },
    ),
]
