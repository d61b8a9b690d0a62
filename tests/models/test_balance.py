"""Channels of similar size: the same products, and less lost in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ultimate_embedder.models.runtimes.balance import channel_factors, rounded
from ultimate_embedder.models.runtimes.int8_weights import product_loss, write_int8_graph
from ultimate_embedder.models.runtimes.openvino import import_openvino

WIDTH, OUTPUTS, GROUP = 256, 32, 128
RANDOM = np.random.default_rng(0)


def inputs(large: float = 40) -> np.ndarray:
    """Rows with two channels that are much larger than the others."""
    values = RANDOM.normal(size=(50, WIDTH)).astype(np.float32)
    values[:, [7, 200]] *= large
    return values


def weights() -> np.ndarray:
    return RANDOM.normal(size=(OUTPUTS, WIDTH)).astype(np.float32) / 16


def test_a_product_with_factors_is_the_same_and_loses_less() -> None:
    values, each = inputs(), weights()
    factors = channel_factors(np.square(values).mean(0), [each])
    assert np.allclose((values / factors) @ (each * factors).T, values @ each.T, rtol=1e-5, atol=1e-5)
    assert factors[7] > 4 * np.median(factors)
    assert product_loss(values, [each], factors) < 0.5 * product_loss(values, [each])


def test_the_last_digits_of_a_machine_do_not_change_the_factors() -> None:
    values, each = inputs(), weights()
    squares = np.square(values).mean(0)
    assert (channel_factors(squares, [each]) == channel_factors(squares * (1 + 1e-9), [each])).all()


def test_channels_of_zeros_have_factors() -> None:
    factors = channel_factors(np.zeros(WIDTH), [np.zeros((OUTPUTS, WIDTH), np.float32)])
    assert np.isfinite(factors).all()
    assert (factors > 0).all()


def test_rounding_takes_the_nearest_of_the_levels_of_a_group() -> None:
    values = np.array([[127, -63.6, 0.5, 1.5, 0, 0, 0, 0]], np.float32)
    assert rounded(values, 4).tolist() == [[127, -64, 0, 2, 0, 0, 0, 0]]  # half to even; a group of zeros stays


@pytest.fixture
def graphs(tmp_path: Path) -> tuple[Path, Path]:
    """A graph with two products of the same input, in fp32 and in int8."""
    openvino = pytest.importorskip("openvino") and import_openvino()
    from openvino import opset13 as ops

    given = ops.parameter([-1, -1, WIDTH], np.float32, name="given")
    first = ops.matmul(given, ops.constant(weights()), False, True)
    second = ops.matmul(given, ops.constant(np.ascontiguousarray(weights().T)), False, False)
    openvino.save_model(openvino.Model([ops.add(first, second)], [given]), str(tmp_path / "plain.xml"), False)
    divisor = write_int8_graph(tmp_path / "plain.xml", tmp_path / "int8.xml", [{"given": inputs()[None]}])
    assert divisor == WIDTH
    return tmp_path / "plain.xml", tmp_path / "int8.xml"


def run(path: Path, values: np.ndarray) -> np.ndarray:
    openvino: Any = import_openvino()
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(next(iter(compiled.create_infer_request().infer({"given": values}).values())))


def test_a_graph_in_int8_divides_an_input_once_for_all_its_products(graphs: tuple[Path, Path]) -> None:
    plain, int8 = graphs
    operations = import_openvino().Core().read_model(str(int8)).get_ordered_ops()
    divided = {
        node.input_value(0).get_node().get_friendly_name() for node in operations if node.get_type_name() == "MatMul"
    }
    assert len(divided) == 1
    assert "given" not in divided
    values = inputs()[None]
    exact = run(plain, values)
    assert np.abs(run(int8, values) - exact).max() < 0.02 * np.abs(exact).max()


def test_channels_of_one_size_are_not_divided(tmp_path: Path, graphs: tuple[Path, Path]) -> None:
    plain, _ = graphs
    write_int8_graph(plain, tmp_path / "even.xml", [{"given": inputs(large=1)[None]}])
    operations = import_openvino().Core().read_model(str(tmp_path / "even.xml")).get_ordered_ops()
    names = [node.input_value(0).get_node().get_friendly_name() for node in operations if "MatMul" in str(node)]
    assert set(names) == {"given"}


def test_an_emulated_graph_rounds_as_the_kernels_do(tmp_path: Path, graphs: tuple[Path, Path]) -> None:
    from benchmarks.int8_emulated import write_emulated

    _, int8 = graphs
    write_emulated(int8, tmp_path / "emulated.xml", GROUP)
    values = inputs()[None, :6]
    values[0, 2] = 0
    lost = run(tmp_path / "emulated.xml", values) - run(int8, values)
    assert 1e-4 < np.abs(lost).max() < 0.1
    assert np.abs(lost[0, 2]).max() == 0
    alone = run(tmp_path / "emulated.xml", values[:, 3:4])
    assert np.abs(alone - run(tmp_path / "emulated.xml", values)[:, 3:4]).max() < 1e-5
