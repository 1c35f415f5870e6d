"""Lengths, areas and points."""

from harness.pool.kata.kata import kata

# fmt: off
# Several cases on a line: the formatter would make a page of them.
KATAS = (
    kata(
        "geometry",
        "frame_area",
        "return the area of a square of side outer minus that of a square of side inner",
        """
        def frame_area(outer, inner):
            return outer * outer - inner * inner
        """,
        (3, 2, 5), (1, 1, 0), (5, 0, 25), (4, 1, 15), (10, 7, 51), (6, 3, 27),
    ),
    kata(
        "geometry",
        "perimeter",
        "return the perimeter of a rectangle of the given width and height",
        """
        def perimeter(width, height):
            return 2 * (width + height)
        """,
        (2, 3, 10), (1, 1, 4), (0, 5, 10), (4, 4, 16), (10, 7, 34), (5, 2, 14),
    ),
    kata(
        "geometry",
        "triangle_area",
        "return half of base times height",
        """
        def triangle_area(base, height):
            return base * height / 2
        """,
        (2, 3, 3), (1, 1, 0.5), (0, 5, 0), (4, 4, 8), (10, 7, 35), (3, 5, 7.5),
    ),
    kata(
        "geometry",
        "manhattan",
        "return the absolute difference of x1 and x2 plus that of y1 and y2",
        """
        def manhattan(x1, y1, x2, y2):
            return abs(x1 - x2) + abs(y1 - y2)
        """,
        (0, 0, 3, 4, 7), (1, 1, 1, 1, 0), (5, 2, 1, 8, 10), (-1, 0, 1, 0, 2), (0, 9, 0, 4, 5), (2, 3, 7, 1, 7),
    ),
    kata(
        "geometry",
        "fits",
        "return True when width and height are both at most limit, else False",
        """
        def fits(width, height, limit):
            return width <= limit and height <= limit
        """,
        (2, 3, 5, True), (5, 5, 5, True), (6, 1, 5, False), (1, 6, 5, False), (9, 9, 5, False), (4, 8, 8, True),
        (8, 4, 8, True), (2, 3, 3, True), (3, 2, 2, False),
    ),
    kata(
        "geometry",
        "volume",
        "return the volume of a box with sides a, b and c",
        """
        def volume(a, b, c):
            return a * b * c
        """,
        (1, 2, 3, 6), (2, 2, 2, 8), (0, 4, 5, 0), (1, 1, 1, 1), (10, 3, 2, 60), (5, 7, 1, 35),
    ),
    kata(
        "geometry",
        "move",
        "return the point [x, y] moved by dx and dy, as a list",
        """
        def move(point, dx, dy):
            return [point[0] + dx, point[1] + dy]
        """,
        ([0, 0], 1, 2, [1, 2]), ([3, 4], 0, 0, [3, 4]), ([5, 1], -2, 3, [3, 4]), ([1, 1], 1, 1, [2, 2]),
        ([-1, 7], 4, -4, [3, 3]), ([10, 20], 5, 6, [15, 26]),
    ),
)
