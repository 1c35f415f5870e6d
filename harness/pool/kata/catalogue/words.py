"""Strings, with one call or one operator."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "words",
        "lower",
        "return s in lower case",
        """
        def lower(s):
            return s.lower()
        """,
        ('abc', 'abc'), ('x', 'x'), ('hello', 'hello'), ('Good Day', 'good day'), ('zz top', 'zz top'),
        ('A1b2', 'a1b2'),
    ),
    kata(
        "words",
        "exclaim",
        "return s followed by an exclamation mark",
        """
        def exclaim(s):
            return s + '!'
        """,
        ('abc', 'abc!'), ('x', 'x!'), ('hello', 'hello!'), ('Good Day', 'Good Day!'), ('zz top', 'zz top!'),
        ('A1b2', 'A1b2!'),
    ),
    kata(
        "words",
        "greet",
        "return Hello and a space, followed by name",
        """
        def greet(name):
            return 'Hello ' + name
        """,
        ('abc', 'Hello abc'), ('x', 'Hello x'), ('hello', 'Hello hello'), ('Good Day', 'Hello Good Day'),
        ('zz top', 'Hello zz top'), ('A1b2', 'Hello A1b2'),
    ),
    kata(
        "words",
        "begins_with",
        "return True when s starts with part",
        """
        def begins_with(s, part):
            return s.startswith(part)
        """,
        ('hello', 'he', True), ('hello', 'lo', False), ('abc', 'abc', True), ('abc', 'b', False),
        ('x', 'y', False), ('aba', 'a', True),
    ),
    kata(
        "words",
        "finishes_with",
        "return True when s ends with part",
        """
        def finishes_with(s, part):
            return s.endswith(part)
        """,
        ('hello', 'he', False), ('hello', 'lo', True), ('abc', 'abc', True), ('abc', 'b', False),
        ('x', 'y', False), ('aba', 'a', True),
    ),
    kata(
        "words",
        "strip_spaces",
        "return s without spaces at its ends",
        """
        def strip_spaces(s):
            return s.strip()
        """,
        (' a ', 'a'), ('b', 'b'), ('  c d', 'c d'), ('e  ', 'e'), ('', ''), (' f g ', 'f g'),
    ),
    kata(
        "words",
        "split_words",
        "return the list of the words of s",
        """
        def split_words(s):
            return s.split()
        """,
        ('a b', ['a', 'b']), ('one', ['one']), ('x y z', ['x', 'y', 'z']), ('', []), ('good day', ['good', 'day']),
        ('to be or', ['to', 'be', 'or']),
    ),
    kata(
        "words",
        "with_comma",
        "return a and b with a comma in between",
        """
        def with_comma(a, b):
            return a + ',' + b
        """,
        ('ab', 'cd', 'ab,cd'), ('x', 'y', 'x,y'), ('', 'end', ',end'), ('hello', 'world', 'hello,world'),
        ('q', '', 'q,'), ('aa', 'a', 'aa,a'),
    ),
    kata(
        "words",
        "as_text",
        "return n as a string",
        """
        def as_text(n):
            return str(n)
        """,
        (4, '4'), (0, '0'), (-3, '-3'), (7, '7'), (10, '10'), (1, '1'),
    ),
    kata(
        "words",
        "swap_case",
        "return s with upper and lower case swapped",
        """
        def swap_case(s):
            return s.swapcase()
        """,
        ('abc', 'ABC'), ('x', 'X'), ('hello', 'HELLO'), ('Good Day', 'gOOD dAY'), ('zz top', 'ZZ TOP'),
        ('A1b2', 'a1B2'),
    ),
)
