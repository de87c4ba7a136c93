"""The work of models: FLOPs against published ones, and bytes that can be computed by hand."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from inferlens.models.model import Model  # noqa: E402
from inferlens.models.work import count, count_module  # noqa: E402
from inferlens.models.zoo import ResNet34  # noqa: E402
from inferlens.spec.case import Case, TensorSpec  # noqa: E402
from tests.models.loading import graph  # noqa: E402

FLOAT = 4
IMAGE = TensorSpec("x", (1, 3, 224, 224))


def counted(module, *shapes, dtype="float32", element=FLOAT):
    specs = tuple(TensorSpec(f"x{index}", shape, dtype) for index, shape in enumerate(shapes))
    return count_module(module.eval(), specs, element)


class Network(nn.Module):
    """Modules that are called by a function."""

    def __init__(self, call, **parts):
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.call(self, *inputs)


def of(work, path=""):
    (module_work,) = [module for module in work.modules if module.module == path]
    return module_work


def total(work):
    return sum(module.flops for module in work.modules)


# FLOPs


@pytest.mark.parametrize("name", ["AlexNet", "ViT_B_16", "MobileNet_V2"])
def test_flops_agree_with_published_ones(name):
    """Torchvision publishes billions of multiplications with additions; one of them is two FLOPs."""
    models = pytest.importorskip("torchvision").models
    with torch.device("meta"):  # their values play no role, and to draw them takes longer than to count
        module = models.get_model(name.lower())
    work = count_module(module.to_empty(device="cpu").eval(), (IMAGE,), FLOAT)
    published = models.get_weight(f"{name}_Weights.IMAGENET1K_V1").meta["_ops"]
    assert total(work) == pytest.approx(2e9 * published, rel=0.01)
    assert not work.uncovered
    assert sum(module.weights for module in work.modules) == pytest.approx(
        FLOAT * sum(tensor.numel() for tensor in module.state_dict().values()), rel=0.01
    )


def test_attention_with_and_without_fused_operators():
    """Of ``n`` tokens of width ``d``: four projections and two products for each head, two layers of the perceptron."""
    n, d, wide = 10, 32, 64
    layer = nn.TransformerEncoderLayer(d, 4, wide, batch_first=True)
    work = counted(nn.TransformerEncoder(layer, 2), (1, n, d))
    attention = 2 * n * d * d * 4 + 2 * 2 * n * n * d
    assert of(work, "layers.0.self_attn").flops == attention
    assert of(work, "layers.1.linear1").flops == of(work, "layers.1.linear2").flops == 2 * n * d * wide
    assert total(work) == 2 * (attention + 4 * n * d * wide)
    alone = counted(nn.MultiheadAttention(d, 4, batch_first=True), (1, n, d), (1, n, d), (1, n, d))
    assert total(alone) == attention  # here the weights of the attention are asked for, and no fused operator runs


def test_a_recurrent_network_and_operators_without_a_formula():
    work = counted(nn.LSTM(8, 16, batch_first=True), (1, 5, 8))
    assert total(work) == 5 * 2 * 4 * 16 * (8 + 16)

    products = Network(lambda _, a, b: (a @ b, b @ b, torch.einsum("ij,j->i", a, b), torch.fft.rfft(b)))
    work = counted(products, (4, 8), (8,))
    assert total(work) == 2 * 32  # of the einsum, which is a product of matrices
    assert list(work.uncovered) == ["aten.mv", "aten.dot", "aten._fft_r2c"]


def test_a_module_called_twice_counts_twice_and_goes_by_its_first_path():
    first, tied = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    tied.weight = first.weight
    work = counted(
        Network(lambda self, x: self.tied(self.again(self.first(x))), first=first, again=first, tied=tied), (3, 16)
    )
    assert [module.module for module in work.modules] == ["", "first", "tied"]
    assert (of(work, "first").calls, of(work, "first").flops) == (2, 2 * 2 * 3 * 16 * 16)
    assert of(work, "first").weights == 2 * 16 * 16 * FLOAT
    assert of(work, "tied").weights == 16 * 16 * FLOAT  # two modules that share weights each read them
    assert of(work, "tied").sources == {"first": 3 * 16 * FLOAT}


# Bytes


def test_bytes_of_a_layer():
    work = of(counted(nn.Linear(8, 4), (2, 8)))
    assert (work.weights, work.inputs, work.outputs, work.returned) == (36 * FLOAT, 16 * FLOAT, 8 * FLOAT, 8 * FLOAT)
    assert work.operators == {"aten.addmm": 1}


def block():
    """Its own operators are an addition and one in place."""

    def call(self, x):
        y = self.relu(self.norm(self.conv(x)))
        y += x
        return self.relu(y).mul_(2.0)

    parts = {"conv": nn.Conv2d(4, 4, 1, bias=False), "norm": nn.BatchNorm2d(4), "relu": nn.ReLU(inplace=True)}
    return Network(call, **parts).eval()


def test_tensors_between_operators_of_a_module_are_not_counted():
    size = 4 * 8 * 8 * FLOAT
    work = counted(block(), (1, 4, 8, 8))
    own = of(work)
    assert (own.inputs, own.sources) == (3 * size, {"relu": 2 * size})  # the rest is the model's input
    assert (own.outputs, own.returned) == (2 * size, size)
    assert of(work, "norm").sources == {"conv": size}
    assert (of(work, "relu").calls, of(work, "relu").sources) == (2, {"norm": size, "": size})


def test_views_read_the_tensor_behind_them():
    def views(self, x):
        token, wide = self.first(x[:, 0]), self.wide(x[:, :1].expand(-1, 100, -1))
        return token, wide, self.both(torch.cat([x, x.transpose(0, 1).transpose(0, 1)]))

    work = counted(Network(views, first=nn.ReLU(), wide=nn.ReLU(), both=nn.ReLU()), (2, 10, 4))
    assert of(work, "first").inputs == of(work, "wide").inputs == 2 * 4 * FLOAT
    assert of(work).inputs == 2 * 10 * 4 * FLOAT  # the same tensor, seen twice


def test_only_the_selected_rows_of_a_table_are_read():
    rows = of(counted(nn.Embedding(10_000, 8), (1, 5), dtype="int64"))
    bag = of(counted(nn.EmbeddingBag(10_000, 8, mode="sum"), (2, 50), dtype="int64"))
    assert (rows.weights, rows.inputs, bag.weights) == (5 * 8 * FLOAT, 5 * 8, 2 * 50 * 8 * FLOAT)


@pytest.mark.parametrize("put", [
    lambda keys, x: keys[:, 5:6].copy_(x), lambda keys, x: keys.index_copy_(1, torch.full((1,), 5), x),
])  # fmt: skip
def test_only_the_written_place_of_a_cache_counts(put):
    """A step of a language model writes one token's keys, and reads those of a thousand."""
    token, cache = 8 * 16 * FLOAT, 8 * 1000 * 16 * FLOAT

    def call(self, x):
        put(self.keys, x)
        return self.keys

    module = Network(call)
    module.register_buffer("keys", torch.zeros(8, 1000, 16))
    work = counted(nn.Sequential(module, nn.Softmax(-1)), (8, 1, 16))
    assert (of(work, "0").inputs, of(work, "0").weights, of(work, "0").outputs) == (token, 0, token)
    assert (of(work, "1").sources, of(work, "1").weights) == ({"0": token}, cache - token)


# Models

CASE = Case(model="x:y", backend="pytorch")


def model(module=None, **fields):
    defaults = {"format": "module", "inputs": (TensorSpec("x", (1, 4, 8, 8)),), "module": module}
    return Model(spec="x:y", name="y", **{**defaults, **fields})


def test_the_model_is_left_as_it_is():
    def call(self, x):
        self.calls += 1
        self.last = x
        return self.calls + x

    module, fast = Network(call).eval(), torch.backends.mha.get_fastpath_enabled()
    module.register_buffer("calls", torch.zeros(1))
    module.last = None
    assert count(model(module), CASE).modules
    assert (module.last, float(module.calls)) == (None, 0)
    assert (torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()) == (fast, True)
    hooks = torch.nn.modules.module
    assert not {**hooks._global_forward_hooks, **hooks._global_forward_pre_hooks}


@pytest.mark.parametrize("changed", [{"precision": "fp16"}, {"options": {"inference_precision": "bf16"}}])
def test_bytes_are_those_of_the_compute_precision(changed):
    full, half = (count(model(block()), item) for item in (CASE, msgspec.structs.replace(CASE, **changed)))
    for one, other in zip(full.modules, half.modules, strict=True):
        assert one.flops == other.flops
        assert all(getattr(one, name) == 2 * getattr(other, name) for name in ("weights", "inputs", "outputs"))


@pytest.mark.parametrize(("fields", "note"), [
    ({"module": Network(lambda _, x: x * 2 if x.sum() > 0 else x)}, "counting failed: "),
    ({"format": "engine"}, "engine"),
    ({}, "there is no module to count"), ({"format": "onnx", "path": Path("nowhere.onnx")}, "counting failed: "),
])  # fmt: skip
def test_a_model_that_cannot_be_counted_has_a_reason(fields, note):
    work = count(model(**fields), CASE)
    assert (list(work.modules), note in work.note) == ([], True)


def test_an_onnx_file_is_counted_from_its_shapes(tmp_path):
    pytest.importorskip("onnxscript")
    from inferlens.execution.profile import makers

    def call(self, x):
        y = self.head(self.up(torch.relu(self.conv(x))).mean((2, 3)))
        return y @ y.transpose(0, 1)

    convolution, up = nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.ConvTranspose2d(8, 4, 2, stride=2)
    module, file = Network(call, conv=convolution, up=up, head=nn.Linear(4, 5)).eval(), tmp_path / "net.onnx"
    torch.onnx.export(module, (torch.zeros(1, 4, 8, 8),), str(file), dynamo=True, verbose=False, input_names=["x"])
    alive, stored = count(model(module), CASE), count(model(format="onnx", path=file), CASE, makers)
    assert all(of(stored, one.module).flops == one.flops for one in alive.modules)
    for path in ("conv", "up", "head"):
        one, other = of(stored, path), of(alive, path)
        assert (one.weights, one.outputs) == (other.weights, other.outputs)
    assert of(stored, "conv").inputs == 4 * 8 * 8 * FLOAT
    assert stored.note.startswith("counted from the shapes that ONNX")


@pytest.mark.parametrize(("operator", "table", "tensor_spec", "expected"), [
    ("Gather", (1000, 8), TensorSpec("x", (5,), "int64"), (0, 5 * 8 * FLOAT, 5 * 8 * FLOAT)),
    ("GatherElements", (1000, 8), TensorSpec("x", (5, 8), "int64"), (0, 5 * 8 * FLOAT, 5 * 8 * FLOAT)),
    ("MatMul", (4, 3), TensorSpec("x", (5, 2, 4)), (2 * 5 * 2 * 4 * 3, 4 * 3 * FLOAT, 5 * 2 * 3 * FLOAT)),
])  # fmt: skip
def test_an_operator_of_onnx_at_the_shape_that_is_given(operator, table, tensor_spec, expected, tmp_path):
    """Of a table only the rows that are asked for are read."""
    onnx = pytest.importorskip("onnx")
    make, kinds = onnx.helper, onnx.TensorProto
    names = ["x", "table"] if operator == "MatMul" else ["table", "x"]
    kind = kinds.INT64 if tensor_spec.dtype == "int64" else kinds.FLOAT
    weight, file = onnx.numpy_helper.from_array(np.zeros(table, np.float32), "table"), tmp_path / "rows.onnx"
    onnx.save(graph([make.make_node(operator, names, ["y"])], {"x": None}, [weight], kind=kind), str(file))
    work = of(count(model(format="onnx", path=file, inputs=(tensor_spec,)), CASE))
    assert (work.flops, work.weights, work.outputs) == expected


# The network of the zoo


@pytest.fixture(scope="module")
def resnet34():
    return ResNet34().eval()


def test_parameters_are_those_of_the_formula(resnet34):
    """Every convolution has a bias, and only the first block of stages two to four one in its shortcut."""
    expected, width = 3 * 64 * 7**2 + 64 + 2 * 64 + 4608 * 1000 + 1000, 64
    for blocks, channels in ((3, 64), (4, 128), (6, 256), (3, 512)):
        first, inner = (before * channels * 3**2 + channels for before in (width, channels))
        expected += first + (2 * blocks - 1) * inner + blocks * 2 * 2 * channels
        expected += first if width != channels else 0
        width = channels
    assert sum(parameter.numel() for parameter in resnet34.parameters()) == expected


def test_relu_comes_before_batch_norm(resnet34):
    modules = dict(resnet34.named_modules())
    nodes = [node for node in torch.fx.symbolic_trace(resnet34).graph.nodes if node.op == "call_module"]
    kind = {node: type(modules[node.target]) for node in nodes}
    assert all([kind[user] for user in node.users] == [nn.ReLU] for node in nodes if kind[node] is nn.Conv2d)
    norms = [node.args[0] for node in nodes if kind[node] is nn.BatchNorm2d]
    assert len(norms) == 1 + 2 * (3 + 4 + 6 + 3)
    assert all((kind[relu], kind[relu.args[0]]) == (nn.ReLU, nn.Conv2d) for relu in norms)
