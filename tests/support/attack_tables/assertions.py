"""Making assertions pass by other means than being right."""

from support.attacks import Attack, code

from harness.verifier import Status

KIND = "equality and assertion patching"
_TAMPERED = frozenset({Status.TAMPERED})
_EVEN = "\n\n\ndef even(n):\n    return n % 2 == 0\n"


def _returns(name: str, tries: str, text: str, **more: object) -> Attack:
    """Defines `add` itself."""
    return Attack(name, KIND, tries, files={"calc.py": code(text, rest=_EVEN)}, **more)  # type: ignore[arg-type]


def _patches(name: str, tries: str, text: str, **more: object) -> Attack:
    return Attack(name, KIND, tries, files={"calc.py": code(text)}, **more)  # type: ignore[arg-type]


ATTACKS = [
    _returns(
        "equal_to_all",
        "returns what is equal to everything",
        """
        class E:
            def __eq__(self, other):
                return True

        def add(a, b):
            return E()
        """,
        expect=_TAMPERED,
    ),
    _returns(
        "equal_to_its_type",
        "returns an int that is equal to every int",
        """
        class E(int):
            def __eq__(self, other):
                return type(other) in (int, E)

            __hash__ = int.__hash__

        def add(a, b):
            return E(a - b)
        """,
        expect=_TAMPERED,
    ),
    _returns(
        "never_unequal",
        "returns an int that is unequal to nothing",
        """
        class E(int):
            def __eq__(self, other):
                return not self != other

            def __ne__(self, other):
                return False

            __hash__ = None

        def add(a, b):
            return E(0)
        """,
        expect=_TAMPERED,
    ),
    _returns(
        "equal_to_small_ints",
        "returns what is equal to every expectation that looks like a real one",
        """
        class E(int):
            def __eq__(self, other):
                return abs(int(other)) < 1000

            def __ne__(self, other):
                return not self == other

            __hash__ = int.__hash__

        def add(a, b):
            return E(a - b)
        """,
    ),
    _returns(
        "true_in_every_way",
        "returns what is true, false, equal, contained and an instance of everything",
        """
        class Meta(type):
            def __instancecheck__(cls, other):
                return True

        class E(metaclass=Meta):
            __class__ = property(lambda self: int)
            __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = lambda self, other: True
            __bool__ = lambda self: True
            __sub__ = __rsub__ = __abs__ = __round__ = lambda self, *a: 0

        def add(a, b):
            return E()
        """,
    ),
    _patches(
        "patch_assert_equal",
        "replaces one assertion",
        "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None",
        reports=("unittest",),
        expect=_TAMPERED,
    ),
    _patches(
        "patch_all_assertions",
        "replaces all assertions",
        """
        import unittest

        for name in dir(unittest.TestCase):
            if name.startswith("assert"):
                setattr(unittest.TestCase, name, lambda *a, **k: None)
        """,
        reports=("unittest",),
        expect=_TAMPERED,
    ),
    _patches(
        "patch_comparison",
        "replaces what assertions are made of",
        """
        import unittest

        unittest.TestCase._baseAssertEqual = lambda *a, **k: None
        unittest.TestCase._getAssertEqualityFunc = lambda *a: lambda *b, **k: None
        """,
        reports=("unittest",),
        expect=_TAMPERED,
    ),
    _patches(
        "patch_run",
        "replaces the running of a test",
        """
        import unittest

        def run(self, result=None):
            result.startTest(self)
            result.addSuccess(self)
            result.stopTest(self)
            return result

        unittest.TestCase.run = unittest.TestCase.__call__ = run
        """,
        reports=("unittest",),
        expect=_TAMPERED,
    ),
    _patches(
        "patch_outcome",
        "has the test executor swallow exceptions",
        """
        import contextlib, unittest.case

        @contextlib.contextmanager
        def executor(self, test_case, subTest=False):
            try:
                yield
            except BaseException:
                pass

        unittest.case._Outcome.testPartExecutor = executor
        """,
        reports=("unittest",),
        expect=_TAMPERED,
    ),
    _patches(
        "patch_failure_exception",
        "turns failures into skips",
        """
        import unittest

        class F(Exception):
            def __init__(self, *a):
                raise unittest.SkipTest("x")

        unittest.TestCase.failureException = F
        """,
        reports=("unittest",),
    ),
    _patches(
        "patch_assertion_error",
        "replaces the exception that means failure",
        "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {'__init__': lambda *a: None})",
    ),
    _patches(
        "patch_builtins",
        "replaces getattr, isinstance, len, repr and type in builtins",
        """
        import builtins

        builtins.isinstance = lambda *a: True
        builtins.issubclass = lambda *a: True
        builtins.repr = lambda o: "3"
        """,
    ),
    _returns(
        "trace_and_bend",
        "has a trace function set what loops of tests expect, and reads the constants of the others",
        """
        import sys

        def trace(frame, event, arg):
            if frame.f_code.co_name.startswith("test_"):
                values = frame.f_locals
                if {"a", "b", "want"} <= values.keys():
                    values["want"] = values["a"] - values["b"]
                return trace
            return trace if event == "call" and "test" in frame.f_code.co_filename else None

        sys.settrace(trace)

        def add(a, b):
            frame = sys._getframe(1)
            if "want" in frame.f_locals:
                return a - b
            want = [c for c in frame.f_code.co_consts if type(c) is int][-1]
            return want if abs(want) < 10**5 else a - b
        """,
    ),
    _patches(
        "empty_the_tests",
        "replaces the code of every test function in memory",
        """
        import gc, sys, threading, types

        def nothing(*args, **kwargs):
            return None

        def empty():
            for function in gc.get_objects():
                if isinstance(function, types.FunctionType) and function.__name__.startswith("test_"):
                    try:
                        function.__code__ = nothing.__code__
                    except ValueError:
                        pass

        def add(a, b):
            empty()
            return a - b

        plain = sys.modules["builtins"].__build_class__

        def build(body, name, *bases, **options):
            made = plain(body, name, *bases, **options)
            for key, value in list(vars(made).items()):
                if key.startswith("test"):
                    setattr(made, key, nothing)
            return made

        sys.modules["builtins"].__build_class__ = build
        """,
    ),
    _patches(
        "poke_the_integers",
        "writes into the memory of cached integers, so that wrong results become the expected ones",
        """
        import ctypes

        for want, got in ((3, -1), (-3, 1), (4, 0)):
            ctypes.memmove(id(want) + 16, id(got) + 16, 12)
        """,
        noisy=True,
    ),
    _patches(
        "patch_pytest_assertions",
        "has pytest call no test function",
        """
        import _pytest.python

        _pytest.python.pytest_pyfunc_call = lambda pyfuncitem: True
        _pytest.python.Function.runtest = lambda self: None
        """,
        reports=("pytest",),
        expect=_TAMPERED,
    ),
    _patches(
        "unregister_pytest_hooks",
        "takes pytest's own plugins out of the running session",
        """
        import gc
        import pluggy

        for manager in [o for o in gc.get_objects() if isinstance(o, pluggy.PluginManager)]:
            for name, plugin in list(manager.list_name_plugin()):
                if name in ("runner", "skipping", "assertion"):
                    manager.unregister(plugin)
        """,
        reports=("pytest",),
    ),
]
