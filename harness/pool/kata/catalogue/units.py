"""Money, temperatures and packages."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "units",
        "to_fahrenheit",
        "return the Fahrenheit temperature of c degrees Celsius",
        """
        def to_fahrenheit(c):
            return c * 9 / 5 + 32
        """,
        (0, 32), (100, 212), (10, 50), (2.5, 36.5), (-40, -40), (5, 41), (20, 68),
    ),
    kata(
        "units",
        "to_cents",
        "return the amount in cents of dollars and cents",
        """
        def to_cents(dollars, cents):
            return dollars * 100 + cents
        """,
        (1, 50, 150), (0, 0, 0), (0, 99, 99), (2, 5, 205), (10, 0, 1000), (3, 25, 325),
    ),
    kata(
        "units",
        "discount",
        "return price minus percent hundredths of it",
        """
        def discount(price, percent):
            return price - price * percent / 100
        """,
        (100, 10, 90), (200, 50, 100), (80, 0, 80), (50, 100, 0), (40, 25, 30), (300, 20, 240), (10, 5, 9.5),
    ),
    kata(
        "units",
        "change",
        "return what is left of paid after price, or 0 when paid is too little",
        """
        def change(paid, price):
            return max(paid - price, 0)
        """,
        (10, 7, 3), (5, 8, 0), (4, 4, 0), (100, 1, 99), (20, 15, 5), (0, 3, 0), (3, 0, 3),
    ),
    kata(
        "units",
        "boxes",
        "return how many boxes of the given size hold n items",
        """
        def boxes(n, size):
            return (n + size - 1) // size
        """,
        (10, 5, 2), (11, 5, 3), (0, 4, 0), (1, 4, 1), (9, 3, 3), (7, 2, 4),
    ),
    kata(
        "units",
        "share",
        "return the items that each of the people gets when n are shared equally",
        """
        def share(n, people):
            return n // people
        """,
        (10, 2, 5), (11, 2, 5), (3, 4, 0), (9, 3, 3), (100, 7, 14), (8, 1, 8),
    ),
    kata(
        "units",
        "cost",
        "return the price of n items, with 5 more for delivery when n is below 10",
        """
        def cost(n, price):
            if n < 10:
                return n * price + 5
            return n * price
        """,
        (1, 2, 7), (10, 3, 30), (9, 1, 14), (20, 2, 40), (0, 4, 5), (11, 1, 11), (5, 6, 35),
    ),
)
