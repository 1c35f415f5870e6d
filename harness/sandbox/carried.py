"""Programs that run inside sandboxes: modules of this package as one text, since no sandbox has the package.

The modules use the standard library and one another, by their ordinary names; inside, a loader finds them in the text,
each when it is first imported. Of pydantic there is a stand-in that puts values into a class, which is all that is
needed where values have been checked on the host. Any Python >= 3.9 will do: annotations stay unread.
"""

from pathlib import Path

_PYDANTIC = """\
class BaseModel:
    def __init__(self, **values):
        self.__dict__.update(values)
def ConfigDict(**_): pass
def Field(**_): pass
"""

_LOADER = """\
import __future__, importlib.machinery, sys
class Carried:
    sources = {sources!r}
    def find_spec(self, name, path=None, target=None):
        package = any(other.startswith(name + ".") for other in self.sources)
        if package or name in self.sources:
            return importlib.machinery.ModuleSpec(name, self, is_package=package)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        code = compile(self.sources.get(name, ""), name, "exec", __future__.annotations.compiler_flag)
        exec(code, module.__dict__)
sys.meta_path.insert(0, Carried())
from harness.sandbox.{main} import main
main(sys.argv[1:])
"""


def program(main: str, *modules: str) -> str:
    """The text that calls `main(arguments)` of the module `main` of this package, which may import `modules`."""
    folder = Path(__file__).parent
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in (main, *modules)}
    sources = {"pydantic": _PYDANTIC} | {f"harness.sandbox.{name}": text for name, text in texts.items()}
    return _LOADER.format(sources=sources, main=main)
