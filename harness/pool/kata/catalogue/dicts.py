"""Reading and building dictionaries."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "dicts",
        "lookup",
        "return the value of key in d, or 0 when it is not there",
        """
        def lookup(d, key):
            return d.get(key, 0)
        """,
        ({'a': 1}, 'a', 1), ({'a': 1}, 'b', 0), ({}, 'x', 0), ({'x': 5, 'y': 6}, 'y', 6), ({'q': -1}, 'q', -1),
        ({'m': 2}, 'n', 0),
    ),
    kata(
        "dicts",
        "histogram",
        "return a dictionary of how often each element occurs in xs",
        """
        def histogram(xs):
            counts = {}
            for x in xs:
                counts[x] = counts.get(x, 0) + 1
            return counts
        """,
        (['a', 'b', 'a'], {'a': 2, 'b': 1}), ([], {}), ([7], {7: 1}), ([1, 1, 1], {1: 3}),
        ([1, 2, 3], {1: 1, 2: 1, 3: 1}), (['x', 'y', 'y'], {'x': 1, 'y': 2}),
    ),
    kata(
        "dicts",
        "invert",
        "return a dictionary with the keys and values of d exchanged",
        """
        def invert(d):
            return {value: key for key, value in d.items()}
        """,
        ({'a': 1}, {1: 'a'}), ({}, {}), ({'x': 5, 'y': 6}, {5: 'x', 6: 'y'}), ({1: 2}, {2: 1}),
        ({'k': 'v'}, {'v': 'k'}), ({1: 10, 2: 20, 3: 30}, {10: 1, 20: 2, 30: 3}),
    ),
    kata(
        "dicts",
        "total_values",
        "return the sum of the values of d",
        """
        def total_values(d):
            return sum(d.values())
        """,
        ({'a': 1, 'b': 2}, 3), ({}, 0), ({'x': 5}, 5), ({1: 10, 2: 20}, 30), ({'p': -1, 'q': 1}, 0),
        ({3: 4, 5: 6, 7: 8}, 18),
    ),
    kata(
        "dicts",
        "keys_above",
        "return the sorted keys of d whose value is greater than limit",
        """
        def keys_above(d, limit):
            return sorted([k for k in d if d[k] > limit])
        """,
        ({'a': 1, 'b': 5}, 3, ['b']), ({}, 0, []), ({'y': 4, 'x': 4}, 2, ['x', 'y']), ({'a': 3}, 3, []),
        ({'c': 9, 'b': 8, 'a': 1}, 5, ['b', 'c']), ({'k': 7}, 6, ['k']),
    ),
    kata(
        "dicts",
        "best_key",
        "return the key of d with the largest value",
        """
        def best_key(d):
            best = None
            for key in d:
                if best is None or d[key] > d[best]:
                    best = key
            return best
        """,
        ({'a': 1, 'b': 2}, 'b'), ({'x': 5}, 'x'), ({'p': 9, 'q': 3}, 'p'), ({}, None), ({1: 0, 2: -1}, 1),
        ({'a': 2, 'b': 7, 'c': 4}, 'b'), ({'m': 4, 'n': 4}, 'm'),
    ),
    kata(
        "dicts",
        "add_item",
        "return d with the number n added to the value of key, which starts at 0",
        """
        def add_item(d, key, n):
            d[key] = d.get(key, 0) + n
            return d
        """,
        ({}, 'a', 2, {'a': 2}), ({'a': 1}, 'a', 4, {'a': 5}), ({'x': 1}, 'y', 3, {'x': 1, 'y': 3}),
        ({'k': 0}, 'k', -1, {'k': -1}), ({}, 'z', 0, {'z': 0}), ({'p': 2, 'q': 3}, 'q', 10, {'p': 2, 'q': 13}),
    ),
)
