"""Building and cutting strings."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "strings",
        "reverse",
        "return s reversed",
        """
        def reverse(s):
            return s[::-1]
        """,
        ('abc', 'cba'), ('', ''), ('x', 'x'), ('hello', 'olleh'), ('ab', 'ba'), ('aab', 'baa'),
    ),
    kata(
        "strings",
        "join_words",
        "return a and b with one space between them",
        """
        def join_words(a, b):
            return a + ' ' + b
        """,
        ('x', 'y', 'x y'), ('', 'a', ' a'), ('b', '', 'b '), ('foo', 'bar', 'foo bar'), ('1', '2', '1 2'),
        ('no', 'on', 'no on'),
    ),
    kata(
        "strings",
        "upper",
        "return s in upper case",
        """
        def upper(s):
            return s.upper()
        """,
        ('abc', 'ABC'), ('', ''), ('aBc', 'ABC'), ('hello world', 'HELLO WORLD'), ('X', 'X'), ('a1b2', 'A1B2'),
    ),
    kata(
        "strings",
        "echo",
        "return s repeated n times, followed by '!'",
        """
        def echo(s, n):
            return s * n + '!'
        """,
        ('ab', 2, 'abab!'), ('x', 3, 'xxx!'), ('a', 0, '!'), ('hi', 1, 'hi!'), ('-', 5, '-----!'),
        ('no', 3, 'nonono!'),
    ),
    kata(
        "strings",
        "first_char",
        "return the first character of s, or '' when s is empty",
        """
        def first_char(s):
            if s == '':
                return ''
            return s[0]
        """,
        ('abc', 'a'), ('', ''), ('x', 'x'), ('hello', 'h'), ('Zebra', 'Z'), ('42', '4'),
    ),
    kata(
        "strings",
        "surround",
        "return s with mark before it and after it",
        """
        def surround(s, mark):
            return mark + s + mark
        """,
        ('a', '*', '*a*'), ('', '-', '--'), ('hi', '"', '"hi"'), ('x', 'ab', 'abxab'), ('yes', '!', '!yes!'),
        ('b', '', 'b'),
    ),
    kata(
        "strings",
        "is_palindrome",
        "return True when s reads the same backwards, else False",
        """
        def is_palindrome(s):
            return s == s[::-1]
        """,
        ('abba', True), ('abc', False), ('', True), ('x', True), ('ab', False), ('level', True), ('abca', False),
    ),
)
