"""Tricks with what the host reads back: links, special files, names, sizes, depth."""

from support.attacks import REFUSED, Attack, py, sh

from harness.verifier import Status

KIND = "symlink and archive tricks on the way out"
_FAILED = frozenset({Status.FAILED})


_SWAP = """
import os

while True:  # @TOKEN@
    try:
        os.symlink("@HOST_FILE@", "swap.tmp")
        os.rename("swap.tmp", "swap.py")
        open("swap.new", "w").write("x")
        os.rename("swap.new", "swap.py")
    except OSError:
        pass
"""


def _out(name: str, tries: str, *commands, **more) -> Attack:  # type: ignore[no-untyped-def]
    return Attack(name, KIND, tries, commands=commands, **{"expect": _FAILED, **more})


ATTACKS = [
    _out(
        "links_to_the_host",
        "links files and folders to host paths, so that the host reads them into the patch",
        sh(
            """
            ln -s @HOST_FILE@ secret.py; ln -s @SOLUTION@ solution; ln -s @TESTS@ hidden; ln -s /etc/passwd passwd
            rm calc.py; ln -s @SOLUTION@/files/calc.py calc.py
            rm -r tests; ln -s @TESTS@ tests; ln -s / root; ln -s /proc/self/cwd cwd
            """
        ),
    ),
    _out(
        "links_for_the_writer",
        "links paths that the host writes to when it applies the patch",
        sh("mkdir sub; ln -s @HOST_FILE@ sub/x; rm calc.py; ln -s @HOST_FILE@ calc.py; ln -s ../../../.. up"),
    ),
    _out(
        "links_in_circles",
        "makes loops and long chains of links",
        py(
            """
            import os

            os.symlink("loop", "loop")
            os.symlink(".", "here")
            os.symlink("/workspace", "there")
            for i in range(300):
                os.symlink(f"chain{i + 1}", f"chain{i}")
            """
        ),
    ),
    _out(
        "special_files",
        "leaves fifos, sockets and, where it may, device files",
        py(
            """
            import os, socket, stat

            os.mkfifo("fifo.py")
            os.unlink("calc.py")
            os.mkfifo("calc.py")
            socket.socket(socket.AF_UNIX).bind("socket.py")
            for major, minor in ((1, 1), (1, 8), (8, 0), (254, 0)):
                try:
                    os.mknod(f"device{major}", 0o666 | stat.S_IFBLK, os.makedev(major, minor))
                    os.close(os.open(f"device{major}", os.O_RDONLY))
                    breach("a device can be opened")
                except OSError:
                    pass
            """
        ),
    ),
    _out(
        "sparse_giants",
        "leaves files that are huge in name only",
        py(
            """
            import os

            for name, size in (("giant.py", 1 << 40), ("large.py", 7 << 20), ("calc.py", 1 << 33)):
                fd = os.open(name, os.O_RDWR | os.O_CREAT)
                for length in (size, 1 << 26, 1 << 22):
                    try:
                        import signal
                        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                        os.ftruncate(fd, length)
                        break
                    except OSError:
                        pass
            """
        ),
        expect=REFUSED,  # the module is full of nulls
    ),
    _out(
        "deep_tree",
        "leaves folders in folders, deeper than paths may be",
        py(
            """
            import os

            for _ in range(1500):
                try:
                    os.mkdir("d" * 40)
                    os.chdir("d" * 40)
                except OSError:
                    break
            with open("x", "w") as stream:
                stream.write("x")
            os.chdir("/workspace")
            """,
            ends=False,
        ),
    ),
    _out(
        "many_files",
        "leaves more files than the host cares to read",
        py(
            """
            import os

            os.mkdir("many")
            for i in range(6000):
                try:
                    os.close(os.open(f"many/{i}.py", os.O_CREAT | os.O_WRONLY))
                except OSError:
                    break
            """
        ),
    ),
    _out(
        "odd_names",
        "leaves names with newlines, escapes, surrogates, quotes, options and the look of other paths",
        py(
            """
            import os

            odd = [b"a\\nb.py", b"diff --git\\n+++ b", b"\\xff\\xfe.py", b"\\x1b[2Jx.py", b"-rf",
                   b"a\\tb", b" ", b"...", b"$(reboot)", b"`id`", b"';rm x;'", b"%s%n", "\u202egpj.yp".encode(),
                   "ﬁle.py".encode(), "e\u0301.py".encode(), "\u00e9.py".encode(), b"con", b"..\\\\..\\\\x", b"x" * 255]
            for name in odd:
                with open(name, "wb") as stream:
                    stream.write(b"x")
            """
        ),
    ),
    _out(
        "hard_links",
        "links system files and its own many times",
        py(
            """
            import os

            for path in ("/usr/bin/env", "/bin/sh", "/etc/ld.so.cache", "/proc/self/exe", "@HOST_FILE@"):
                try:
                    os.link(path, "linked" + os.path.basename(path), follow_symlinks=True)
                    breach(f"hard link to {path}")
                except OSError:
                    pass
            with open("body.py", "wb") as stream:
                stream.write(b"#" * 500_000)
            for i in range(200):
                os.link("body.py", f"copy{i}.py")
            """
        ),
    ),
    _out(
        "closed_rights",
        "leaves files and folders that their reader may not open",
        sh(
            """
            mkdir -p closed/in; echo x > closed/in/x.py; chmod 0 closed/in/x.py closed/in closed
            chmod 0 calc.py; chmod 4777 README.md; chmod 1000 tests; chmod 0 .
            """
        ),
    ),
    _out(
        "paths_beyond_all_limits",
        "leaves folders so deep that no system call takes a path to what is in them",
        py(
            """
            import os
            for depth in range(60):
                os.mkdir("d" * 200)
                os.chdir("d" * 200)
                open("calc.py", "w").close()
            """
        ),
    ),
    _out(
        "paths_that_lead_out",
        "leaves archives and a patch whose members lead out, for an extractor",
        py(
            """
            import io, tarfile, zipfile

            with tarfile.open("repo.tar", "w") as tar:
                for name in ("../../../../@HOST_FILE@", "@HOST_FILE@", "calc.py/../../../x"):
                    info = tarfile.TarInfo(name)
                    info.size = 1
                    tar.addfile(info, io.BytesIO(b"x"))
                link = tarfile.TarInfo("link")
                link.type, link.linkname = tarfile.SYMTYPE, "@HOST_FILE@"
                tar.addfile(link)
            with zipfile.ZipFile("repo.zip", "w") as archive:
                archive.writestr("../../../..@HOST_FILE@", "x")
            with open("model.patch", "w") as stream:
                stream.write("--- a/../../../../x\\n+++ b/../../../../@HOST_FILE@\\n@@ -0,0 +1 @@\\n+x\\n")
            """
        ),
    ),
    _out(
        "folder_in_the_place_of_code",
        "puts a folder where the module was, and a file where its folder will be",
        sh("rm calc.py; mkdir calc.py; echo x > calc.py/__init__.py; rm -r tests; echo x > tests; mkdir README.md.d"),
        expect=REFUSED,  # the module is gone
    ),
    _out(
        "moving_target",
        "goes on swapping a file and a link while the host reads",
        py(
            f"""
import subprocess, sys

subprocess.Popen([sys.executable, "-c", {_SWAP!r}], start_new_session=True)
"""
        ),
    ),
]
