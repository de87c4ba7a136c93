"""The Containerfile as far as it can be read without a registry: its instructions, and that what it names is there."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent
KNOWN = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Names and arguments, with lines that go on joined and comments left out."""
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def test_it_starts_from_the_cuda_runtime_and_ends_as_backends_of_a_plain_user():
    made = instructions()
    names = [name for name, _ in made]
    assert set(names) <= KNOWN
    assert names[:2] == ["ARG", "FROM"]
    assert re.search(r"nvidia/cuda:[\d.]+-cudnn-runtime-", made[0][1])
    assert made[-2:] == [("ENTRYPOINT", '["inferlens"]'), ("CMD", '["backends"]')]
    assert names.index("USER") < len(names) - 3
    assert "inferlens backends --wide" in dict(made[-3:]).get("RUN", "")
    assert not any("driver" in rest for name, rest in made if name == "RUN")  # it is the host's


def test_commands_are_shell_and_what_is_copied_and_installed_exists():
    made = instructions()
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    for name, rest in made:
        if name == "RUN":
            assert shlex.split(rest)
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources)
            assert all(f"!{source}" in ignored for source in sources)
    extras = next(rest.partition("=")[2].split(",") for name, rest in made if rest.startswith("EXTRAS="))
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)
