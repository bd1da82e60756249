import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from study_runs import COST, adaptation, write_run

from fedhet_app.analysis.paper_a import METHODS
from fedhet_app.analysis.plots import allocation, curves, style
from fedhet_app.analysis.study import load_study


def section_of(tmp_path):
    (section,) = load_study([tmp_path]).sections
    return section


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def test_curves_are_means_over_seeds_in_a_band_from_lowest_to_highest(tmp_path):
    write_run(tmp_path / "a", strategy="fjord", accuracies=(0.2, 0.6))
    write_run(tmp_path / "b", strategy="fjord", seed=43, accuracies=(0.4, 0.7))
    (axes,) = curves.allocation_curves(section_of(tmp_path)).axes
    line = lines_of(axes)["FjORD"]
    np.testing.assert_allclose(line.get_xdata(), [1, 2])
    np.testing.assert_allclose(line.get_ydata(), [30, 65])
    (band,) = (each for each in axes.collections if isinstance(each, PolyCollection))
    corners = {(x, round(y)) for x, y in band.get_paths()[0].vertices}
    assert corners == {(1, 20), (1, 40), (2, 60), (2, 70)}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "test accuracy, full width (%)")


def test_seeds_are_averaged_over_the_rounds_they_share(tmp_path):
    write_run(tmp_path / "a", strategy="fjord", accuracies=(0.2, 0.6, 0.8))
    write_run(tmp_path / "b", strategy="fjord", seed=43, accuracies=(0.4, 0.7))
    rounds, values = curves.over_seeds(section_of(tmp_path).runs, "accuracy")
    np.testing.assert_array_equal(rounds, [1, 2])
    np.testing.assert_array_equal(values, [[0.2, 0.6], [0.4, 0.7]])


def test_a_loss_that_is_not_finite_leaves_a_gap(tmp_path):
    write_run(tmp_path / "a", strategy="fedavg", losses=[2.0, None, 1.0])
    (axes,) = curves.loss_curves(section_of(tmp_path)).axes
    np.testing.assert_array_equal(lines_of(axes)["FedAvg"].get_ydata(), [2.0, np.nan, 1.0])
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "test loss (nats)"
    assert len(axes.get_yticks()) >= 4


def test_a_run_whose_every_loss_is_infinite_is_drawn_all_the_same(tmp_path):
    write_run(tmp_path / "a", strategy="scaffold", losses=[None] * 3)
    curves.loss_curves(section_of(tmp_path)).savefig(tmp_path / "figure.png")


def test_a_method_has_one_colour_in_every_figure(tmp_path):
    for strategy in ("has-fl", "random-budget", "fedavg"):
        write_run(tmp_path / strategy, strategy=strategy, cost=COST)
    section = section_of(tmp_path)
    figures = (curves.allocation_curves(section), curves.comparison_curves(section))
    for name, colour in (("HAS-FL", "#0072b2"), ("Random-budget", "#cc79a7")):
        drawn = [lines_of(axes)[name] for f in figures for axes in f.axes if name in lines_of(axes)]
        assert len(drawn) >= 2
        assert {to_hex(line.get_color()) for line in drawn} == {colour}


def test_no_two_methods_look_the_same():
    looks = [
        (style.colour_of(label), style.dash_of(label), style.marker_of(label))
        for label in [*METHODS, "a label of one's own"]
    ]
    assert len(set(looks)) == len(looks)


def test_every_name_is_in_the_legend_once(tmp_path):
    for strategy in ("has-fl", "heterofl", "fjord"):
        write_run(tmp_path / strategy, strategy=strategy)
    (legend,) = curves.allocation_curves(section_of(tmp_path)).legends
    assert [text.get_text() for text in legend.get_texts()] == ["HAS-FL", "FjORD", "HeteroFL"]


def test_the_frontier_sets_final_accuracy_against_upload(tmp_path):
    write_run(tmp_path / "a", strategy="has-fl", accuracies=(0.5,), upload=104, cost=COST)
    write_run(tmp_path / "b", strategy="has-fl", seed=43, accuracies=(0.7,), upload=312, cost=COST)
    write_run(tmp_path / "c", strategy="fedavg", accuracies=(0.9,), upload=416, cost=COST)
    (axes,) = curves.frontier(section_of(tmp_path)).axes
    points = {
        container.get_label(): container.lines[0].get_xydata()[0].tolist()
        for container in axes.containers
    }
    # HAS-FL's second seed is shared with nobody; 104 of 416 bytes are a quarter.
    assert points == {"HAS-FL": [25.0, 50.0], "FedAvg": [100.0, 90.0]}


def test_the_estimates_are_steps_from_one(tmp_path):
    rows = [
        *adaptation(5, divergence=[1.0, 3.0], allocated_width=[0.5, 0.6]),
        {"round": 6, "partition": 0, "divergence": 9.0, "trained": True},
        *adaptation(10, divergence=[0.5, 1.5], allocated_width=[0.5, 0.6]),
    ]
    write_run(tmp_path / "run", clients=rows, width=0.55)
    left, right = allocation.estimates_over_rounds(section_of(tmp_path)).axes
    np.testing.assert_allclose(lines_of(left)["one seed"].get_xydata(), [[0, 1], [5, 2], [10, 1]])
    widths = lines_of(right)["one seed"].get_xydata()
    np.testing.assert_allclose(widths, [[1, 0.55], [2, 0.55], [3, 0.55]])


def test_the_final_allocation_is_the_last_one(tmp_path):
    capacity, tv = [0.5, 1.0], [0.3, 0.6]
    early = adaptation(5, capacity=capacity, allocated_width=[0.5, 0.9])
    late = adaptation(10, capacity=capacity, allocated_width=[0.4, 0.8])
    write_run(tmp_path / "run", clients=[*early, *late], tv=tv)
    left, right = allocation.final_allocation(section_of(tmp_path)).axes
    by_tier = [each.get_offsets().tolist() for each in left.collections]
    assert by_tier == [[[0.5, 0.4]], [[1.0, 0.8]]]
    assert [each.get_offsets().tolist() for each in right.collections] == [
        [[0.3, 0.4]],
        [[0.6, 0.8]],
    ]


def test_cost_bars_have_a_panel_for_each_architecture(tmp_path):
    write_run(tmp_path / "a", dataset="cifar10", cost=COST)
    write_run(tmp_path / "b", dataset="emnist", cost=COST[::-1])
    write_run(tmp_path / "c", dataset="digits")
    write_run(tmp_path / "d", dataset="emnist", cost=COST, model_preset="paper")
    figure = allocation.cost_bars(load_study([tmp_path]).sections)
    assert [axes.get_title() for axes in figure.axes] == [
        "cifar10: cnn, small",
        "emnist: cnn, small",
        "emnist: cnn, paper",
    ]
    for axes in figure.axes:
        heights = [bar.get_height() for bar in axes.patches]
        assert heights == [25.0, 100.0, 25.0, 100.0]  # parameters, then multiply-accumulates


@pytest.mark.parametrize(
    "draw",
    [
        curves.comparison_curves,
        curves.loss_curves,
        curves.frontier,
        allocation.estimates_over_rounds,
        allocation.final_allocation,
    ],
)
def test_a_figure_without_its_runs_is_left_out(tmp_path, draw):
    write_run(tmp_path / "run", strategy="fjord")
    assert draw(section_of(tmp_path)) is None
