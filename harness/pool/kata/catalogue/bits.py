"""Binary digits."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "bits",
        "is_power_of_two",
        "return True when n is 1, 2, 4, 8 and so on, else False",
        """
        def is_power_of_two(n):
            return n > 0 and n & n - 1 == 0
        """,
        (1, True), (2, True), (3, False), (8, True), (0, False), (12, False), (16, True), (7, False),
    ),
    kata(
        "bits",
        "get_bit",
        "return bit number i of n, where bit 0 is the lowest",
        """
        def get_bit(n, i):
            return n >> i & 1
        """,
        (5, 0, 1), (5, 1, 0), (5, 2, 1), (8, 3, 1), (8, 0, 0), (0, 4, 0), (6, 1, 1),
    ),
    kata(
        "bits",
        "set_bit",
        "return n with bit number i set to 1",
        """
        def set_bit(n, i):
            return n | 1 << i
        """,
        (0, 0, 1), (0, 3, 8), (5, 1, 7), (5, 0, 5), (8, 2, 12), (3, 2, 7),
    ),
    kata(
        "bits",
        "count_ones",
        "return the number of binary ones in n",
        """
        def count_ones(n):
            count = 0
            while n > 0:
                count += n % 2
                n = n // 2
            return count
        """,
        (0, 0), (1, 1), (3, 2), (8, 1), (255, 8), (10, 2),
    ),
    kata(
        "bits",
        "low_bits",
        "return the lowest four bits of n",
        """
        def low_bits(n):
            return n & 15
        """,
        (15, 15), (16, 0), (17, 1), (0, 0), (255, 15), (42, 10),
    ),
    kata(
        "bits",
        "to_binary",
        "return n in binary as a string, without a prefix",
        """
        def to_binary(n):
            digits = ''
            while n > 0:
                digits = str(n % 2) + digits
                n = n // 2
            return digits or '0'
        """,
        (0, '0'), (1, '1'), (2, '10'), (5, '101'), (8, '1000'), (13, '1101'),
    ),
    kata(
        "bits",
        "differing_bits",
        "return the number whose ones are the bits in which a and b differ",
        """
        def differing_bits(a, b):
            return a ^ b
        """,
        (5, 3, 6), (0, 0, 0), (7, 7, 0), (8, 1, 9), (12, 10, 6), (0, 4, 4),
    ),
)
