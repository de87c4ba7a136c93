import msgspec
import pytest

from inferlens.analysis.modules import ModuleTable, module_table
from inferlens.analysis.profile_table import profile_runs
from inferlens.record.profile import ModuleWork, Work
from tests.analysis.profiles import eager, fused, layer, nasty, other, profile
from tests.views.samples import case

ALL = (eager(), fused(), other())


def table(*profiles, **options) -> ModuleTable:
    return module_table([(item, profile_runs(item)) for item in profiles], **options)


def row(module_table: ModuleTable, path: str, kind: str = "module"):
    (only,) = [row for row in module_table.rows if row.kind == kind and ".".join(row.path) == path]
    return only


def typical(cell) -> float | None:
    return None if cell is None or cell.times is None else cell.times.typical


@pytest.mark.parametrize("rule", ["work", "whole", "split"])
@pytest.mark.parametrize("depth", [1, 2, None])
@pytest.mark.parametrize("profiles", [ALL, ALL[:1], (nasty(),)])
def test_every_column_adds_up_to_its_whole(profiles, depth, rule):
    module_table = table(*profiles, depth=depth, rule=rule)
    assert module_table.rows[0].kind == "whole"
    for column in range(len(profiles)):
        for index, module_row in enumerate(module_table.rows):
            beneath = []
            for lower in module_table.rows[index + 1 :]:
                if lower.depth <= module_row.depth:
                    break
                beneath += [typical(lower.cells[column]) or 0.0] if lower.depth == module_row.depth + 1 else []
            if beneath:
                assert sum(beneath) == pytest.approx(typical(module_row.cells[column]) or 0.0)


@pytest.mark.parametrize(("rule", "conv1", "model", "bn1"), [("whole", 0, 1.5e-3, 0), ("split", 0.75e-3, 0, 0.45e-3)])
def test_fused_layers_stay_whole_above_their_modules_or_are_split_equally(rule, conv1, model, bn1):
    module_table = table(eager(), fused(), rule=rule)
    assert row(module_table, "conv1").cells[1].shared
    cells = [row(module_table, "conv1"), row(module_table, "", "itself"), row(module_table, "layer1.0.bn1")]
    assert [typical(cell.cells[1]) or 0 for cell in cells] == pytest.approx([conv1, model, bn1], rel=0.02)
    block = row(module_table, "layer1.0").cells[1]
    assert typical(block) == pytest.approx(0.9e-3, rel=0.02)
    assert (block.shared, row(module_table, "conv1").cells[0].shared) == (False, False)


@pytest.mark.parametrize(("flops", "conv", "norm", "itself"), [
    ({"a.conv": 1e9, "a.norm": 0.0}, 1, None, None),  # the module that does the work
    ({"a.conv": 1e9, "a.norm": 0.1e9}, 1, None, None),
    ({"a.conv": 1e9, "a.norm": 1e9}, None, None, 1),  # two that do: what contains them
    ({"a.norm": 1e9, "b": 0.0}, None, 1, None), ({}, None, None, 1),
])  # fmt: skip
def test_a_fused_layer_is_of_the_module_with_the_work(flops, conv, norm, itself):
    of = profile(case(), [layer("fused", 1.0, "a.conv", "a.norm"), layer("b", 1.0, "b")])
    counted = Work(modules=tuple(ModuleWork(module=name, flops=item) for name, item in flops.items()))
    module_table = table(msgspec.structs.replace(of, work=counted))
    for path, expected in (("a.conv", conv), ("a.norm", norm)):
        cell = row(module_table, path).cells[0]
        assert typical(cell) == (expected and pytest.approx(expected, rel=0.02))
        assert cell.shared
        assert cell.counted_in == (None if expected else "a" if itself else "a.conv" if conv else "a.norm")
    assert typical(row(module_table, "a").cells[0]) == pytest.approx(1, rel=0.02)
    assert bool([one for one in module_table.rows if one.kind == "itself"]) == bool(itself)


def test_rows_of_odd_modules_and_their_order():
    twice = profile(case(), [layer("first", 1e-3, "act", "act"), layer("second", 1e-3, "act", calls=2)])
    cell = row(table(twice), "act").cells[0]
    assert (typical(cell), cell.shared) == (pytest.approx(2e-3, rel=0.02), False)
    none, untimed, _ = row(table(*ALL), "dropout").cells
    assert none is None
    assert (untimed.times, untimed.untimed) == (None, True)
    module_table = table(eager(), fused(), depth=1)
    names = [one.path[0] for one in module_table.rows if one.kind == "module"]
    assert names == ["conv1", "bn1", "layer1", "layer2", "dropout"]
    assert (module_table.rows[-1].kind, module_table.rows[-1].depth) == ("not attributed", 1)


def test_marks_are_where_they_can_be_trusted():
    module_table = table(*ALL)
    blocks = row(module_table, "layer2.0").cells
    assert [(cell.fastest, cell.slower) for cell in blocks] == [(False, False), (True, False), (False, True)]
    cells = [row(module_table, path).cells for path in ("conv1", "bn1", "layer1.0.conv1", "dropout")]
    cells += [one.cells for one in module_table.rows if one.kind != "module"]
    assert not any(cell and cell.fastest for cell in sum(cells, ())), "counted elsewhere, or of no module"


@pytest.mark.parametrize(("fields", "ms", "right", "marked"), [
    ({}, 1.2, (), True), ({}, 1.05, (), False), ({"runs": 5}, 2.0, (), False), ({}, 1.2, (True, False), False),
])  # fmt: skip
def test_columns_far_apart_that_can_be_compared_have_marks(fields, ms, right, marked):
    times = [profile(case(name), [layer("a", mean, "a", **fields)]) for name, mean in (("a", 1e-3), ("b", ms * 1e-3))]
    cells = row(table(*times, right=right), "a").cells
    assert (cells[0].fastest, cells[1].slower) == (marked, marked)
