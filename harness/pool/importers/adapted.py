"""An image changed so that a workspace can lie over its repository: what is in the way is moved, or removed.

Some data sets keep the interpreter with its packages below the repository's folder, some the hidden tests beside it.
"""

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

PLACE = "/opt/testgrad"
PYTHON = f"{PLACE}/env/bin/python"

# An interpreter that lies in somebody's home is copied as well: no other user may pass there.
_MOVE = f"""\
RUN set -eu; mkdir -p {PLACE}; real=$(readlink -f {{python}}); base=${{{{real%/bin/*}}}}; \\
 case "$base" in /usr|/usr/local) ;; \\
 *) cp -a "$base" {PLACE}/python; real={PLACE}/python/bin/${{{{real##*/}}}};; esac; \\
 cp -a {{environment}} {PLACE}/env; ln -sf "$real" {PYTHON}; \\
 sed -i "s|^home *=.*|home = ${{{{real%/*}}}}|" {PLACE}/env/pyvenv.cfg; \\
 for file in {PLACE}/env/bin/*; do if [ -f "$file" ] && [ ! -L "$file" ]; then \\
 sed -i '1s|^#!{{environment}}/bin/|#!{PLACE}/env/bin/|' "$file"; fi; done; \\
 chmod -R a+rX {PLACE}
"""


def adapting_dockerfile(image: str, python: str | None, removed: Sequence[str]) -> str:
    """How `image` is changed: the virtual environment of `python` moved to where `PYTHON` is, and `removed` gone.

    It runs programs of the image, as root, and needs a shell, cp, readlink, sed and chmod there.
    """
    lines = [f"FROM {image}\nUSER root\n"]
    if python is not None:
        environment = PurePosixPath(python).parents[1]
        lines.append(_MOVE.format(python=shlex.quote(python), environment=shlex.quote(str(environment))))
    lines += [f"RUN rm -rf {shlex.quote(place)}\n" for place in removed]
    return "".join(lines)
