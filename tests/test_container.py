"""The Containerfile as far as it can be read without a registry: its instructions, and that what it names is there."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_it_starts_from_the_cuda_runtime_and_ends_as_backends_of_a_plain_user():
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    instructions = [(name, rest) for name, _, rest in (line.partition(" ") for line in joined if line.strip())]
    names = [name for name, _ in instructions]
    assert set(names) <= {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert names[:2] == ["ARG", "FROM"]
    assert re.search(r"nvidia/cuda:[\d.]+-cudnn-runtime-", instructions[0][1])
    assert instructions[-2:] == [("ENTRYPOINT", '["inferlens"]'), ("CMD", '["backends"]')]
    assert names.index("USER") < len(names) - 3
    assert "inferlens backends --wide" in dict(instructions[-3:]).get("RUN", "")
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    for name, rest in instructions:
        if name == "RUN":
            assert shlex.split(rest)
            assert "driver" not in rest, "it is the host's"
        if name == "COPY":
            assert all((ROOT / source).exists() and f"!{source}" in ignored for source in rest.split()[:-1])
    extras = next(rest.partition("=")[2].split(",") for _, rest in instructions if rest.startswith("EXTRAS="))
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)
