"""Traces with something wrong in them, by chance."""

from __future__ import annotations

import random
import re


def mutated(data: bytes, of: random.Random) -> bytes:
    """``data`` with a few bytes changed, taken out, put in, doubled, or numbers and texts replaced by odd ones."""
    made = bytearray(data)
    words = rb'NaN -Infinity 1e999 " { } [ ] , \ud800 \x null },{ }],'.split()
    odd = [*b'0 -1 1e300 "7" null [] {} true -9223372036854775808'.split(), b'"%s"' % (b"x" * 9999)]
    for _ in range(of.randint(1, 6)):
        at = of.randrange(len(made) + 1)
        match of.randrange(6):
            case 0:
                made[at : at + 1] = bytes([of.randrange(256)])
            case 1:
                del made[at : at + of.randrange(1, 200)]
            case 2:
                made[at:at] = of.choice(words)
            case 3:
                del made[at:]
            case 4:
                other = of.randrange(len(made) + 1)
                made[at:at] = made[other : other + of.randrange(1, 500)]
            case 5:
                values = list(re.finditer(rb'\d+(?:\.\d+)?|"[^"\n]*"', bytes(made)))
                if values:
                    start, end = of.choice(values).span()
                    made[start:end] = of.choice(odd)
    return bytes(made)
