"""Tables on a terminal: as many columns as fit, names shortened in the middle or folded, sentences last.

The same document gives the same text on every terminal of the same width; nothing is read from the surroundings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from os.path import commonprefix

from rich.cells import cell_len, set_cell_size

from inferlens.errors import InferlensError
from inferlens.units import number
from inferlens.views.plain import plain
from inferlens.views.table import SCREEN, Column, Document, Line, Screen, Table, chosen, longest

LEAST_WIDTH = 60
GAP = 2
ELLIPSIS = "…"
_MOST_ALIKE = 5  # times that names which look the same are told apart
_COMMAND = re.compile(r"(?:^|[:?] )(inferlens [^()]*)$")
_WORD = re.compile(r"(?:'[^']*'|[^\s'])+")  # of a command: what is quoted is one
_NARROWEST = 24  # of names, and of cells that fold
_SHORTENED = 16  # of words that are shortened rather than left out
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35"}


def render(document: Document, width: int = 120, color: bool = False) -> str:
    """The document's tables and sentences, ``width`` columns wide."""
    width = max(width, LEAST_WIDTH)
    paragraphs: list[list[str]] = [[]]
    for block in document.blocks():
        if isinstance(block, str):
            paragraphs[-1] += wrap(plain(block), width)
        else:
            paragraphs += [*_paragraphs(block, width, color), []]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def height(blocks: Sequence[Table | str], width: int) -> int:
    """Lines that they take."""
    return len(render(Document(lambda: blocks, dict), width).splitlines())


def fitting(tries: Iterable[Sequence[Table | str]], screen: Screen) -> list[Table | str]:
    """Return the first that fits on a screen; empty if none does."""
    able = (list(blocks) for blocks in tries if height(chosen(blocks, None), screen.width) <= screen.lines)
    return next(able, [])


def _paragraphs(table: Table, width: int, color: bool) -> Iterator[list[str]]:
    titles = ((table.title, "bold"), (table.about, "dim"))
    yield [_styled(line, style, color) for text, style in titles if text for line in wrap(plain(text), width)]
    answer = [part for line in table.answer for part in ([line] if cell_len(line) <= width else wrap(line, width))]
    yield [_styled(line, "bold", color) for line in answer]
    left = table.used()
    while table.lines:
        shown, widths = _fitting(table, left, width)
        yield list(_grid(table, shown, widths, color))
        left = [place for place in left if place not in shown]
        if not (table.whole and left and shown):
            break
    yield [_styled(line, "dim", color) for note in table.notes for line in wrap(plain(note), width)]
    yield [line for sentence in table.sentences for line in wrap(plain(sentence), width)]


def _fitting(table: Table, places: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """The most important of columns that fit beside the names, in their own order; widths of the names and of each."""
    names = [table.first, *(line.indent + line.name for line in table.lines)]
    natural = widest(names)
    least = max(width * 2 // 5, _NARROWEST)
    if table.fold:
        least = min(max(width // 3, widest([word for name in names for word in name.split()])), width // 2)
    room = width - min(natural, least)
    chosen: dict[int, int] = {}
    for place in sorted(places, key=lambda place: table.columns[place].keep):
        full = _width(table, place)
        words = [word for cell in table.cells(place) for word in cell.split()]
        needed = min(full, max(_NARROWEST, min(widest(words), 32))) if table.columns[place].fold else full
        if needed + GAP > room and not table.columns[place].numeric and room - GAP >= _SHORTENED:
            needed = room - GAP
        if needed + GAP > room:
            break
        room -= needed + GAP
        chosen[place] = needed
    first = min(natural, width - sum(needed + GAP for needed in chosen.values()))
    spare = width - first - sum(needed + GAP for needed in chosen.values())
    folding = sorted((place for place in chosen if table.columns[place].fold), key=lambda place: _width(table, place))
    for count, place in enumerate(folding):  # the narrowest first: what it does not need is the others'
        more = min(_width(table, place) - chosen[place], spare // (len(folding) - count))
        chosen[place], spare = chosen[place] + more, spare - more
    return sorted(chosen), [first, *(chosen[place] for place in sorted(chosen))]


def _width(table: Table, place: int) -> int:
    """How wide a column becomes: its widest cell, or the widest line of its heading."""
    return max(_cells_width(table, place), widest([*_title(table, place), table.columns[place].unit]))


def _cells_width(table: Table, place: int) -> int:
    column, cells = table.columns[place], widest(table.cells(place))
    return cells if column.fold else min(cells, column.most)


def _title(table: Table, place: int) -> list[str]:
    """A title on as many lines as keep the column narrow."""
    words = [shorten(word, table.columns[place].most) for word in table.columns[place].title.split()]
    return wrap(" ".join(words), max(_cells_width(table, place), widest(words), 1))


def _grid(table: Table, shown: Sequence[int], widths: Sequence[int], color: bool) -> Iterator[str]:
    columns = [table.columns[place] for place in shown]
    rule = "─" * (sum(widths) + GAP * len(shown))
    heads = [[table.first]]
    heads += [[*_title(table, place), *filter(None, [table.columns[place].unit])] for place in shown]
    numeric = [False, *(column.numeric for column in columns)]
    if any(any(head) for head in heads):
        padded = [[""] * (max(map(len, heads)) - len(head)) + head for head in heads]
        yield from (_styled(line, "bold", color) for line in _beside(padded, widths, numeric))
        yield rule
    for line, name in zip(table.lines, _names(table.lines, widths[0], table.fold), strict=True):
        row = [name]
        for place, column, width in zip(shown, columns, widths[1:], strict=True):
            text = line.cells[place] if column.numeric else plain(line.cells[place])
            row.append(wrap(text, width) if column.fold else [shorten(text, width)])
        yield from (_styled(item, line.style, color) for item in _beside(row, widths, numeric))
        if line.ends:
            yield rule


def _names(lines: Sequence[Line], width: int, fold: bool) -> Iterator[list[str]]:
    """The names on their lines; those that would look the same when shortened show where they begin to differ."""
    names = [plain(line.name) for line in lines]
    begins = [0] * len(names)
    for _ in range(_MOST_ALIKE):
        found = [_name(line, name, width, fold, begin) for line, name, begin in zip(lines, names, begins, strict=True)]
        alike: dict[str, list[int]] = {}
        for at, shown in enumerate(found):
            alike.setdefault("\n".join(shown), []).append(at)
        clashes = [places for places in alike.values() if len({names[at] for at in places}) > 1]
        for places in clashes:
            begin = len(commonprefix([names[at] for at in places]))  # noqa: RUF071 - no paths
            begins = [begin if at in places else item for at, item in enumerate(begins)]
        if not clashes:
            break
    yield from found


def _beside(cells: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    """Cells of several lines each, as lines."""
    for place in range(max(map(len, cells))):
        texts = [cell[place] if place < len(cell) else "" for cell in cells]
        padded = (
            " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
            for text, width, right in zip(texts, widths, numeric, strict=True)
        )
        yield (" " * GAP).join(padded).rstrip()


def _name(line: Line, name: str, width: int, fold: bool, begin: int) -> list[str]:
    """A name in so much room; where it is too long, with what stands from ``begin`` on rather than with its end."""
    room = width - cell_len(line.indent)
    if fold:
        first, *rest = wrap(name, room) or [""]
        return [line.indent + first, *(" " * cell_len(line.indent) + part for part in rest)]
    if room < 4 and line.indent:  # an indentation that leaves no room for the name
        return [shorten(f"{line.indent.strip()} {name}", width)]
    if begin and cell_len(name) > room:
        start = set_cell_size(name, min(begin, room // 3)).rstrip()
        end = name[max(begin - 2, len(start)) :]
        name = f"{start}{ELLIPSIS}{end}"
        if cell_len(name) > room:
            return [line.indent + set_cell_size(name, room - 1).rstrip() + ELLIPSIS]
    return [line.indent + shorten(name, room)]


def _styled(text: str, style: str, color: bool) -> str:
    codes = ";".join(_STYLES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if color and codes else text


def wrap(text: str, width: int) -> list[str]:
    """``text`` on lines of at most ``width`` columns; a command at its end stays one that can be pasted."""
    found = _COMMAND.search(text)
    words = _WORD.findall(found[1]) if found else []
    if cell_len(text) <= width or not found or widest(words) > width - 2:
        return _wrapped(text.split(), width)
    before = text[: found.start(1)].split()
    beside = before if cell_len(" ".join([*before, *words[:3]])) <= width - 2 else []
    *begun, last = _wrapped([*beside, *words], width - 2)
    return [*([] if beside else _wrapped(before, width)), *(f"{line} \\" for line in begun), last]


def _wrapped(words: Sequence[str], width: int) -> list[str]:
    """Words on lines of at most ``width`` columns, broken between them, or within one that is longer."""
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
    """``text`` in at most ``width`` columns of a terminal, its middle left out: ends of names differ the most."""
    if cell_len(text) <= width:
        return text
    tail = max((width - 1) * 3 // 5, 0)
    start = set_cell_size(text, width - 1 - tail).rstrip()
    return start + ELLIPSIS + set_cell_size(text[::-1], tail).rstrip()[::-1]


def widest(texts: Sequence[str]) -> int:
    """Columns that the widest of some texts takes."""
    return max(map(cell_len, texts), default=0)


# A table's figures as bars, for a terminal: names, bars an eighth of a character fine, and the figures beside them.
#
# Bars start at zero and are clear without colours. A column says itself whether it is drawn (``Column.bars``)::
#
#     openvino     ███████████████▍                  17.1   1.49x
#     onnxruntime  ████████████████▌                 18.3   1.39x
#     pytorch      ██████████████████████▉           25.4   reference

EIGHTHS = " ▏▎▍▌▋▊▉█"
LONGEST, SHORTEST = 48, 12  # of bars, in characters


def barred(document: Document, width: int, columns: str | None = None) -> Document:
    """``document`` with bars in its tables, ``width`` characters wide; ``columns`` are drawn and shown instead.

    Raises:
        InferlensError: when it is rendered, if a column is not known, or there is none with numbers.
    """

    def drawn(screen: Screen) -> list[Table | str]:
        every = document.fitted(screen, tables=True)
        found = chosen(every, columns) if columns else every
        return [
            item if isinstance(item, str) or not item.lines else _barred(item, width, bool(columns)) for item in found
        ]

    return replace(document, blocks=lambda: drawn(SCREEN), screen=drawn)


def bar(share: float, width: int) -> str:
    """A bar of that share of ``width`` characters; what is not zero has at least an eighth of one."""
    share = max(0.0, min(share, 1.0))
    eighths = max(round(share * width * 8), share > 0)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _barred(table: Table, width: int, asked: bool) -> Table:
    used = table.used()
    plots = [place for place in used if asked or table.columns[place].bars == "drawn"]
    figures = {place: [None if line.sums else number(line.cells[place]) for line in table.lines] for place in plots}
    drawn = next((place for place in plots if {*figures[place]} != {None}), None)
    if drawn is None:
        raise InferlensError("No column of this table has numbers to draw.", hint="the same without --bars")
    kept = [place for place in used if table.columns[place].bars == "beside" and not table.columns[place].wide]
    beside = used if asked else sorted([drawn, *kept])
    names = widest([table.first, *(line.indent + line.name for line in table.lines)])
    taken = sum(GAP + max(widest(table.cells(place)), cell_len(table.columns[place].heading)) for place in beside)
    room = min(max(width - min(names, width * 2 // 5) - taken - GAP, SHORTEST), LONGEST)
    numbers = figures[drawn]
    lines = [
        replace(line, cells=["" if item is None else bar(item / most, room), *(line.cells[place] for place in beside)])
        for line, item, most in zip(table.lines, numbers, longest(table, numbers), strict=True)
    ]
    shown = [replace(table.columns[place], wide=False, fold=False) for place in beside]
    columns = [Column("", "", numeric=False, most=LONGEST), *shown]
    return replace(table, columns=columns, lines=lines, fold=False)  # a bar beside each line of names
