"""Real data for a model: samples in order, prepared as the model needs them, or a refusal."""

import numpy as np
import pytest

from inferlens.models import resolve
from inferlens.models import samples as data
from inferlens.models.libraries import Zoo
from inferlens.spec.case import Case, TensorSpec
from tests.refusals import refusal

PAIR = (TensorSpec("a", (2, 3)), TensorSpec("b", (2,), "int64"))
ONE = (TensorSpec("x", (4, 2)),)


def read(asked, specs, prepare=lambda: np.asarray):
    return data.read_samples(str(asked), specs, prepare)


def pairs(samples):
    return [(sample.label, sample.inputs["x"].tolist()) for sample in samples]


def given_samples():
    """Three samples of one input, with labels."""
    return [(np.full(2, place, dtype=np.float64), place) for place in range(3)]


def test_arrays_by_input_name(tmp_path):
    path, other = tmp_path / "data.npz", tmp_path / "other.npz"
    np.savez(path, b=np.arange(3), a=np.arange(9.0).reshape(3, 3), label=np.array([5, 6, 7]))
    np.savez(other, a=np.zeros((3, 3)), b=np.arange(3))
    samples = read(path, PAIR)
    first, second = samples.feeds()
    assert ([sample.label for sample in samples], first["a"].tolist()) == ([5, 6, 7], [[0, 1, 2], [3, 4, 5]])
    assert (first["a"].dtype, first["b"].dtype) == (np.float32, np.int64)
    assert second["b"].tolist() == [2, 2]  # a batch that is not full begins again
    assert samples.digest != read(other, PAIR).digest


def test_a_single_input_goes_by_any_name(tmp_path):
    np.savez(tmp_path / "data.npz", pixels=np.ones((1, 2)))
    assert [feed["x"].shape for feed in read(tmp_path / "data.npz", ONE).feeds()] == [(4, 2)]


def test_a_factory_gives_samples_with_labels_or_without():
    assert pairs(read(f"{__name__}:given_samples", ONE)) == [(0, [0, 0]), (1, [1, 1]), (2, [2, 2])]


def test_images_are_prepared_as_the_library_says_and_classes_take_turns(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for kind, value in (("cat", 0), ("dog", 255)):
        (tmp_path / kind).mkdir()
        for place in range(2):
            image.new("RGB", (300, 260), (value,) * 3).save(tmp_path / kind / f"{place}.png")
    model = resolve.load(Case(model="torchvision:resnet18", backend="", batch=2, calibration=str(tmp_path)))
    assert model.example["x"].shape == (2, 3, 224, 224)
    # ImageNet's mean and deviation of the first channel, of black and of white.
    assert model.example["x"][:, 0, 0, 0] == pytest.approx([-0.485 / 0.229, (1 - 0.485) / 0.229], rel=1e-4)
    assert [sample.label for sample in model.samples] == [0, 1, 0, 1]


def test_a_dataset_of_hugging_face(tmp_path):
    polars = pytest.importorskip("polars")
    polars.DataFrame({"x": [[0.0, 1.0], [2.0, 3.0]], "label": [1, 0]}).write_ipc_stream(tmp_path / "data-0.arrow")
    (tmp_path / "state.json").write_text("{}")
    assert pairs(read(tmp_path, ONE)) == [(1, [0, 1]), (0, [2, 3])]


@pytest.mark.parametrize(("arrays", "specs", "message"), [
    ({"a": np.zeros((2, 3))}, PAIR, "have no 'b'"),
    ({"a": np.zeros((2, 3)), "b": np.zeros(1)}, PAIR, "different numbers of samples (a: 2, b: 1)"),
    ({"x": np.zeros((2, 5))}, ONE, "has the shape 5 for the input 'x'. Expected 2"),
    ({"x": np.zeros((0, 2))}, ONE, "There are no samples"),
    ({"x": np.full((1, 2), np.nan)}, ONE, "values for 'x' that are not finite"),
])  # fmt: skip
def test_data_that_does_not_fit_is_refused(tmp_path, arrays, specs, message):
    np.savez(tmp_path / "data.npz", **arrays)
    error = refusal("", list, read(str(tmp_path / "data.npz"), specs))
    assert message in f"{error.what} Expected {error.expected}"


def test_files_without_data_are_refused(tmp_path):
    def what(asked, prepare=lambda: np.asarray):
        return refusal("", lambda: list(read(asked, ONE, prepare))).what

    assert what("nowhere") == "There is no data 'nowhere'."
    assert what(tmp_path) == f"There are no images in {tmp_path}."
    (tmp_path / "broken.npz").write_bytes(b"PK no")
    (tmp_path / "a.png").write_bytes(b"no image")
    assert all("cannot be read" in what(path) for path in (tmp_path / "broken.npz", tmp_path))
    unknown = what(tmp_path, lambda: Zoo().preparation("resnet34", ONE[0]))
    assert unknown == "How inferlens:resnet34 wants images to be prepared for 'x' is not known."
