"""Tables on a terminal: as many columns as fit, names shortened in the middle or folded, sentences last.

The same document gives the same text on every terminal of the same width; nothing is read from the surroundings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len, set_cell_size

from inferlens.errors import InferlensError
from inferlens.views.table import SCREEN, Column, Document, Line, Screen, Table, group_maxima, plain, select_columns

LEAST_WIDTH = 60
GAP = 2
ELLIPSIS = "…"
_COMMAND = re.compile(r"(?:^|[:?] )(inferlens [^()]*)$")
_WORD = re.compile(r"(?:'[^']*'|[^\s'])+")  # a word of a command; quoted text is one word
_MIN_NAMES = 24  # columns of names, and of cells that fold
_MIN_SHORTENED = 16  # columns of a text cell; with less room it is left out
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35"}


def render_terminal(document: Document, width: int = 120, color: bool = False) -> str:
    """Write tables and sentences for a terminal of ``width`` columns."""
    width = max(width, LEAST_WIDTH)
    paragraphs: list[list[str]] = [[]]
    for block in document.blocks():
        if isinstance(block, str):
            paragraphs[-1] += wrap(plain(block), width)
        else:
            paragraphs += [*_paragraphs(block, width, color), []]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def height(blocks: Sequence[Table | str], width: int) -> int:
    """Return the number of lines."""
    return len(render_terminal(Document(lambda: blocks, dict), width).splitlines())


def fit(document: Document, screen: Screen = SCREEN, *, tables: bool = False) -> Sequence[Table | str]:
    """Return what fits on a screen; with ``tables`` all blocks, where a screen has room for sentences alone."""
    blocks: Sequence[Table | str] = ()
    for blocks in document.tries(screen) if document.tries else [document.blocks()]:
        if not document.tries or height(select_columns(blocks, None), screen.width) <= screen.lines:
            break
    return document.blocks() if tables and all(isinstance(block, str) for block in blocks) else blocks


def _paragraphs(table: Table, width: int, color: bool) -> Iterator[list[str]]:
    titles = ((table.title, "bold"), (table.about, "dim"))
    yield [_styled(line, style, color) for text, style in titles if text for line in wrap(plain(text), width)]
    answer = [part for line in table.answer for part in ([line] if cell_len(line) <= width else wrap(line, width))]
    yield [_styled(line, "bold", color) for line in answer]
    places = table.used()
    while table.lines:
        shown, widths = _fit_columns(table, places, width)
        yield list(_grid(table, shown, widths, color))
        places = [place for place in places if place not in shown]
        if not (table.all_columns and places and shown):
            break
    yield [_styled(line, "dim", color) for note in table.notes for line in wrap(plain(note), width)]
    yield [line for sentence in table.sentences for line in wrap(plain(sentence), width)]


def _fit_columns(table: Table, places: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Return the columns that fit beside the names, in order, and all widths."""
    names = [table.first, *(line.indent + line.name for line in table.lines)]
    natural = widest(names)
    least = max(width * 2 // 5, _MIN_NAMES)
    if table.fold:
        least = min(max(width // 3, widest([word for name in names for word in name.split()])), width // 2)
    room = width - min(natural, least)
    widths: dict[int, int] = {}
    for place in sorted(places, key=lambda place: table.columns[place].keep):
        full = _width(table, place)
        words = [word for cell in table.cells(place) for word in cell.split()]
        needed = min(full, max(_MIN_NAMES, min(widest(words), 32))) if table.columns[place].fold else full
        if needed + GAP > room and not table.columns[place].numeric and room - GAP >= _MIN_SHORTENED:
            needed = room - GAP
        if needed + GAP > room:
            break
        room -= needed + GAP
        widths[place] = needed
    first = min(natural, width - sum(needed + GAP for needed in widths.values()))
    spare = width - first - sum(needed + GAP for needed in widths.values())
    for place in (place for place in widths if table.columns[place].fold):
        more = min(_width(table, place) - widths[place], spare)
        widths[place], spare = widths[place] + more, spare - more
    return sorted(widths), [first, *(widths[place] for place in sorted(widths))]


def _width(table: Table, place: int) -> int:
    return max(_cells_width(table, place), widest([*_title_lines(table, place), table.columns[place].unit]))


def _cells_width(table: Table, place: int) -> int:
    column, cells = table.columns[place], widest(table.cells(place))
    return cells if column.fold else min(cells, column.max_width)


def _title_lines(table: Table, place: int) -> list[str]:
    """Wrap a title so that the column stays narrow."""
    column = table.columns[place]
    words = [shorten(word, column.max_width) for word in plain(column.title).split()]
    return wrap(" ".join(words), max(_cells_width(table, place), widest(words), 1))


def _grid(table: Table, shown: Sequence[int], widths: Sequence[int], color: bool) -> Iterator[str]:
    columns = [table.columns[place] for place in shown]
    rule = "─" * (sum(widths) + GAP * len(shown))
    heads = [[table.first]]
    heads += [[*_title_lines(table, place), *filter(None, [table.columns[place].unit])] for place in shown]
    numeric = [False, *(column.numeric for column in columns)]
    if any(any(head) for head in heads):
        padded = [[""] * (max(map(len, heads)) - len(head)) + head for head in heads]
        yield from (_styled(line, "bold", color) for line in _join_cells(padded, widths, numeric))
        yield rule
    alike: dict[str, dict[str, int]] = {}  # numbers of the names that are cut to the same text
    for line in table.lines:
        name = _name_lines(line, widths[0], table.fold)
        numbers = alike.setdefault("\n".join(name), {})
        if (number := numbers.setdefault(line.name, len(numbers) + 1)) > 1:
            mark = f" #{number}"
            name = [shorten("".join(name), widths[0] - len(mark)) + mark]
        row = [name]
        for place, column, width in zip(shown, columns, widths[1:], strict=True):
            text = line.cells[place] if column.numeric else plain(line.cells[place])
            row.append(wrap(text, width) if column.fold else [shorten(text, width)])
        yield from (_styled(text, line.style, color) for text in _join_cells(row, widths, numeric))
        if line.ends:
            yield rule


def _join_cells(cells: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    """Yield cells of several lines each as lines."""
    for place in range(max(map(len, cells))):
        texts = [cell[place] if place < len(cell) else "" for cell in cells]
        padded = (
            " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
            for text, width, right in zip(texts, widths, numeric, strict=True)
        )
        yield (" " * GAP).join(padded).rstrip()


def _name_lines(line: Line, width: int, fold: bool) -> list[str]:
    """Return the lines of a name, or the name cut to ``width``."""
    name, room = plain(line.name), width - cell_len(line.indent)
    if fold:
        first, *rest = wrap(name, room) or [""]
        return [line.indent + first, *(" " * cell_len(line.indent) + part for part in rest)]
    if room < 4 and line.indent:  # an indentation that leaves no room for the name
        return [shorten(f"{line.indent.strip()} {name}", width)]
    return [line.indent + shorten(name, room)]


def _styled(text: str, style: str, color: bool) -> str:
    codes = ";".join(_STYLES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if color and codes else text


def wrap(text: str, width: int) -> list[str]:
    """Wrap ``text``. A command at its end gets lines of its own, and stays one that can be pasted."""
    match = _COMMAND.search(text)
    if cell_len(text) <= width or not match:
        return _wrap_words(text.split(), width)
    *begun, last = _wrap_words(_WORD.findall(match[1]), width - 2)
    return [*_wrap_words(text[: match.start(1)].split(), width), *(f"{line} \\" for line in begun), last]


def _wrap_words(words: Sequence[str], width: int) -> list[str]:
    """Wrap words, and break words that are longer than a line."""
    lines = [""]
    for word in words:
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        lines.append(word)
        while cell_len(lines[-1]) > width:
            start = set_cell_size(lines[-1], width).rstrip() or lines[-1][0]
            lines[-1:] = [start, lines[-1][len(start) :]]
    return lines[1:]


def shorten(text: str, width: int) -> str:
    """Cut the middle of ``text`` to ``width`` terminal columns, because names differ most at their ends."""
    if cell_len(text) <= width:
        return text
    tail = max((width - 1) * 3 // 5, 0)
    start = set_cell_size(text, width - 1 - tail).rstrip()
    return start + ELLIPSIS + set_cell_size(text[::-1], tail).rstrip()[::-1]


def widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


# Bars start at zero, in steps of an eighth of a character. ``Column.bars`` marks the drawn column::
#
#     openvino     ███████████████▍                  17.1   1.49x
#     onnxruntime  ████████████████▌                 18.3   1.39x
#     pytorch      ██████████████████████▉           25.4   reference

EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 24  # characters of the longest


def with_bars(document: Document, columns: str | None = None) -> Document:
    """Return a document with bars in its tables, of the named ``columns`` or of all.

    Raises:
        InferlensError: when it is rendered, if a column is not known, or there is none with numbers.
    """

    def drawn(screen: Screen) -> list[Table | str]:
        shown = select_columns(fit(document, screen, tables=True), columns)
        return [_draw_bars(block) if isinstance(block, Table) and block.lines else block for block in shown]

    return replace(document, blocks=lambda: drawn(SCREEN), tries=lambda screen: [drawn(screen)])


def bar(share: float, width: int) -> str:
    """Return a bar of a share of ``width`` characters; a positive share has at least an eighth of one."""
    share = max(0.0, min(share, 1.0))
    eighths = max(round(share * width * 8), share > 0)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _draw_bars(table: Table) -> Table:
    """Put bars of the first column with numbers in front; columns that are marked for it come first."""
    used = table.used()
    marked = [place for place in used if table.columns[place].bars]
    figures = {place: table.numbers(place) for place in used}
    drawn = next((place for place in marked or used if {*figures[place]} != {None}), None)
    if drawn is None:
        raise InferlensError("No column of this table has numbers to draw.", hint="the same without --bars")
    lines = []
    for line, value, most in zip(table.lines, figures[drawn], group_maxima(table, figures[drawn]), strict=True):
        cell = "" if value is None else bar(value / most, BAR_WIDTH)
        lines.append(replace(line, cells=[cell, *line.cells]))
    return replace(table, columns=[Column("bar", "", numeric=False), *table.columns], lines=lines)
