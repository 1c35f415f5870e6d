"""Letters and words of a text."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "text",
        "count_vowels",
        "return the number of vowels (a, e, i, o, u) in s",
        """
        def count_vowels(s):
            n = 0
            for c in s:
                if c in 'aeiou':
                    n += 1
            return n
        """,
        ('banana', 3), ('xyz', 0), ('', 0), ('aeiou', 5), ('hello', 2), ('unit', 2), ('queue', 4),
    ),
    kata(
        "text",
        "count_spaces",
        "return the number of spaces in s",
        """
        def count_spaces(s):
            return s.count(' ')
        """,
        ('a b', 1), ('', 0), ('abc', 0), ('a b c', 2), ('  ', 2), (' x ', 2), ('one two three four', 3),
    ),
    kata(
        "text",
        "count_words",
        "return the number of words in s, separated by spaces",
        """
        def count_words(s):
            return len(s.split())
        """,
        ('a b', 2), ('', 0), ('hello', 1), ('one two three', 3), ('  padded  words ', 2), ('the end of it all', 5),
    ),
    kata(
        "text",
        "initials",
        "return the first letters of the words of s, in upper case",
        """
        def initials(s):
            result = ''
            for word in s.split():
                result += word[0].upper()
            return result
        """,
        ('ada lovelace', 'AL'), ('', ''), ('bob', 'B'), ('one two three', 'OTT'), ('Grace Hopper', 'GH'),
        ('x y', 'XY'),
    ),
    kata(
        "text",
        "longest_word",
        "return the longest of the words, the first one of those when several are",
        """
        def longest_word(words):
            best = words[0]
            for word in words:
                if len(word) > len(best):
                    best = word
            return best
        """,
        (['a', 'bbb', 'cc'], 'bbb'), (['x'], 'x'), (['aa', 'bb'], 'aa'), (['one', 'three', 'two'], 'three'),
        (['', 'q'], 'q'), (['long', 'lo', 'l'], 'long'), (['zz', 'a', 'cccc'], 'cccc'),
    ),
    kata(
        "text",
        "remove_spaces",
        "return s without its spaces",
        """
        def remove_spaces(s):
            return s.replace(' ', '')
        """,
        ('a b', 'ab'), ('', ''), ('abc', 'abc'), ('a b c', 'abc'), ('  x', 'x'),
        ('hello big world', 'hellobigworld'),
    ),
    kata(
        "text",
        "last_word",
        "return the last word of s",
        """
        def last_word(s):
            words = s.split()
            return words[-1]
        """,
        ('a b', 'b'), ('hello', 'hello'), ('one two three', 'three'), ('the end', 'end'), ('x y z w', 'w'),
        ('go home now', 'now'),
    ),
)
