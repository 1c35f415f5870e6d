"""Instructions: what fails is told, what was changed is not, by whomever they are worded."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from harness.pool.builder.config import WriterConfig
from harness.pool.builder.instruct import fixed_wording, leaks, make_report, model_wording
from harness.pool.builder.runner import TestEnd

TEST = b'''class TestBox:
    def test_double(self):
        """A box knows twice its value.

        More.
        """
        box = Box(4)
        assert box.double() == 8
'''
DIFF = ["        return self.value * 2", "        return self.value + 2"]
FAILING = {"tests/test_core.py::TestBox::test_double": TestEnd("failed", 0.1, "AssertionError: at 0x7f00deadbeef", 8)}


def report(diff=DIFF, failing=FAILING, tests=TEST):
    return make_report("mathy", "1.2", ("src",), failing, 7, {"tests/test_core.py": tests}, diff)


def test_a_report_tells_name_purpose_check_and_end():
    (example,) = report().examples
    assert example.name == "TestBox.test_double"
    assert example.purpose == "A box knows twice its value."
    assert example.check == "assert box.double() == 8"
    assert example.result == "AssertionError: at 0x…"
    text = fixed_wording(report())
    assert "A test of its suite fails, 7 pass" in text and "PYTHONPATH=src" in text


@pytest.mark.parametrize("line", ["assert box.double() == 8", "  assert   box.double()==8"])
def test_what_stands_in_the_diff_is_not_told(line):
    (example,) = report([*DIFF, line]).examples
    assert example.check == ""
    assert not leaks(fixed_wording(report([*DIFF, line])), [*DIFF, line])


def test_a_test_that_cannot_be_read_is_told_by_its_name():
    (example,) = report(tests=b"\xff(").examples
    assert example.name == "TestBox.test_double" and not example.check


def test_few_of_many_failing_tests_are_shown():
    many = {f"tests/test_core.py::test_{n}": TestEnd("failed", 0.1, "KeyError: 1") for n in range(20)}
    text = fixed_wording(report(failing=many))
    assert "20 tests of its suite fail" in text and text.count("* `") == 4 and "others of the kind" in text


@pytest.fixture
def server():
    """A small OpenAI-compatible server: `answers` are given in turn, `asked` are the prompts."""
    state = {"answers": [], "asked": []}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state["asked"].append((self.path, body))
            answer = state["answers"].pop(0)
            self.send_response(200 if answer else 500)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": answer}}]}).encode())

        def log_message(self, *args):
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    state["config"] = WriterConfig(url=f"http://127.0.0.1:{httpd.server_port}/v1", model="m", attempts=2)
    yield state
    httpd.shutdown()
    httpd.server_close()


async def test_a_model_words_the_report_without_having_seen_the_diff(server):
    server["answers"] = ["The box of mathy does not give twice its value any more."]
    text = await model_wording(report(), server["config"], DIFF)
    assert text.startswith("The box of mathy") and "mend it there" in text
    (path, body), *_ = server["asked"]
    assert path == "/v1/chat/completions" and body["model"] == "m"
    assert "twice its value" in str(body) and "self.value" not in str(body)


async def test_an_answer_that_hits_on_the_diff_is_asked_for_again(server):
    leak = "Surely it must be `return self.value * 2` in the method double."
    server["answers"] = [leak, "The box of mathy does not give twice its value any more."]
    assert "self.value" not in await model_wording(report(), server["config"], DIFF)
    server["answers"] = [leak, leak]
    assert await model_wording(report(), server["config"], DIFF) is None


async def test_a_server_that_fails_gives_no_wording(server):
    server["answers"] = ["", ""]
    assert await model_wording(report(), server["config"], DIFF) is None
