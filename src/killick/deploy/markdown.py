"""Text, code and tables in Markdown, whatever characters are in them."""

import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+")


def in_line(words: object) -> str:
    r"""On one line: whatever breaks lines, or is not seen, becomes a space.

    Example:
        >>> in_line(" two\nlines ")
        'two lines'
    """
    return _INVISIBLE.sub(" ", str(words)).strip()


def text(words: object) -> str:
    r"""Words as they are, on one line: nothing in them is markup.

    Example:
        >>> text("a|b *c*")
        'a\\|b \\*c\\*'
    """
    return _SPECIAL.sub(r"\\\1", in_line(words))


def code(words: object) -> str:
    """Words as code, on one line.

    Example:
        >>> code("killick:resnet_small")
        '`killick:resnet_small`'
        >>> code("a ` b")
        '`` a ` b ``'
    """
    line = in_line(words)
    if not line:
        return ""
    fence = "`" * (_longest_run(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def fenced(block: str, language: str = "") -> str:
    """A block of code.

    Example:
        >>> print(fenced("x = 1", "python"))
        ```python
        x = 1
        ```
    """
    fence = "`" * max(3, _longest_run(block) + 1)
    return f"{fence}{language}\n{block.rstrip()}\n{fence}"


def table(titles: Sequence[str], lines: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table whose columns are aligned also where it is read as text.

    Args:
        titles: Of the columns.
        lines: Cells; pipes in them, as in code, are escaped here where they are not yet.
        words: How many columns, from the left, hold words; the others hold numbers.

    Example:
        >>> print(table(["set", "%"], [["clean", "93.1"], ["fog", "7.0"]]))
        | set   |    % |
        | ----- | ---: |
        | clean | 93.1 |
        | fog   |  7.0 |
    """
    cells = [[_escape_pipes(cell) for cell in line] for line in (titles, *lines)]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(titles))]
    rules = ["-" * w if i < words else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    aligned = [
        [
            c.ljust(w) if i < words else c.rjust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        for line in cells
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (aligned[0], rules, *aligned[1:]))


def _escape_pipes(cell: str) -> str:
    return re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", cell)


def _longest_run(words: str) -> int:
    return max((len(run) for run in re.findall("`+", words)), default=0)
