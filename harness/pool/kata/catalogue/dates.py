"""Times and dates as whole numbers."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "dates",
        "is_leap",
        "return True when year is divisible by 4 but not by 100, or by 400",
        """
        def is_leap(year):
            return year % 4 == 0 and year % 100 != 0 or year % 400 == 0
        """,
        (2024, True), (2023, False), (1900, False), (2000, True), (2100, False), (1996, True), (2001, False),
        (2022, False),
    ),
    kata(
        "dates",
        "to_minutes",
        "return the minutes since midnight at the given hour and minute",
        """
        def to_minutes(hour, minute):
            return hour * 60 + minute
        """,
        (1, 30, 90), (0, 0, 0), (0, 45, 45), (2, 0, 120), (23, 59, 1439), (10, 5, 605),
    ),
    kata(
        "dates",
        "hour_of",
        "return the whole hours in the given minutes",
        """
        def hour_of(minutes):
            return minutes // 60
        """,
        (90, 1), (0, 0), (59, 0), (60, 1), (150, 2), (1439, 23),
    ),
    kata(
        "dates",
        "weekday_after",
        "return the weekday (0 to 6) that is n days after weekday day",
        """
        def weekday_after(day, n):
            return (day + n) % 7
        """,
        (0, 1, 1), (6, 1, 0), (3, 7, 3), (2, 10, 5), (5, 0, 5), (4, 4, 1),
    ),
    kata(
        "dates",
        "quarter",
        "return the quarter (1 to 4) of month (1 to 12)",
        """
        def quarter(month):
            return (month - 1) // 3 + 1
        """,
        (1, 1), (3, 1), (4, 2), (6, 2), (7, 3), (9, 3), (10, 4), (12, 4),
    ),
    kata(
        "dates",
        "next_month",
        "return the month (1 to 12) that follows month",
        """
        def next_month(month):
            if month == 12:
                return 1
            return month + 1
        """,
        (1, 2), (12, 1), (11, 12), (6, 7), (2, 3), (9, 10),
    ),
    kata(
        "dates",
        "days_old",
        "return the days from born to today, or 0 when born is later",
        """
        def days_old(born, today):
            if born > today:
                return 0
            return today - born
        """,
        (1, 5, 4), (5, 1, 0), (3, 3, 0), (0, 10, 10), (100, 365, 265), (7, 8, 1),
    ),
)
