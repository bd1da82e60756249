"""Paper B in the report: its numbers, tables and figures, from runs that the tests write."""

import json
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from safetensors.numpy import save_file
from scipy import stats
from study_runs import write_rows, write_run, write_suite

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.plots import bridge as bridge_plot
from fedhet_app.analysis.plots import mixture as plots
from fedhet_app.analysis.plots import shifts, style
from fedhet_app.analysis.report import write_report
from fedhet_app.analysis.study import load_study
from fedhet_app.analysis.tables import bridge, components, durations, mixture
from fedhet_app.data.shifts import client_offset
from fedhet_app.errors import FedhetError


def write_dual(directory, *, system=None, average=None, routing=None, rounds=(), **options):
    """A run under dual heterogeneity; ``rounds`` holds columns to add to each of its rounds."""
    accuracies = {"system": system, "average": average, "routing": routing}
    extra = {f"{key}-accuracy": value for key, value in accuracies.items() if value is not None}
    options = {"dataset": "fashion-mnist", "num_clients": 2, "fraction_train": 1.0} | options
    write_run(
        directory,
        accuracies=(0.1,) * max(1, len(rounds)),
        extra=extra,
        partition="dual",
        **options,
    )
    if rounds:
        lines = (directory / "rounds.jsonl").read_text().splitlines()
        rows = [json.loads(line) | own for line, own in zip(lines, rounds, strict=True)]
        write_rows(directory / "rounds.jsonl", rows)
    return directory


def write_partition(directory, **columns):
    content = {name.replace("_", "-"): value for name, value in columns.items()}
    (directory / "partition.json").write_text(json.dumps(content))


def section_of(tmp_path):
    (section,) = load_study([tmp_path]).sections
    return section


def rows_by_name(table):
    names = [column.name for column in table.columns]
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in table.texts()}


# --- What the paper has ---


def test_a_run_stands_beside_the_papers_row_of_its_method_and_setting():
    spm = {"strategy": "fedspm", "dual.alpha-inter": 1.0}
    assert paper_b.row_of(spm) == "fedspm-shared"
    assert paper_b.row_of(spm | {"fedspm.encoders": "per-component"}) == "fedspm-per-component"
    assert paper_b.row_of(spm | {"fedspm.components": 2}) == ""
    assert paper_b.row_of(spm | {"fedspm.init": "identical"}) == ""
    assert paper_b.row_of(spm | {"routing.momentum": 0.5}) == ""
    assert paper_b.row_of({"strategy": "has-fl"}) == ""
    drm = paper_b.published("cifar100-20", {"strategy": "feddrm"})
    assert (drm.system.mean, drm.system.std) == (27.15, 0.37)
    assert (drm.average.mean, drm.average.std) == (27.55, 0.37)
    assert paper_b.published("digits", {"strategy": "feddrm"}) is None
    less = spm | {"dual.alpha-inter": 0.5}
    assert paper_b.published("fashion-mnist", less).average.mean == 74.24
    assert paper_b.published("fashion-mnist", less | {"dual.alpha-intra": 0.5}) is None
    assert paper_b.published("cifar10", less) is None


def test_the_papers_column_says_what_its_text_says():
    # Section 3.2: FedSPM is best everywhere, 1x before Cx, and models that all clients share
    # answer alike with and without a vote.
    for rows in paper_b.ACCURACIES.values():
        assert rows.keys() == paper_b.METHODS.keys()
        for metric in ("system", "average"):
            ranked = sorted(rows, key=lambda key: -getattr(rows[key], metric).mean)
            assert ranked[:2] == ["fedspm-shared", "fedspm-per-component"]
        assert rows["fedavg"].system == rows["fedavg"].average


def test_a_clients_bits_are_described_as_they_shift():
    for client in range(8):
        tint, vertical, horizontal = paper_b.shift_of(client).split(", ")
        offset = client_offset(client, 4, 4, 0.2).astype(int)
        assert (offset[..., 0].sum() > offset[..., 2].sum()) == (tint == "red")
        assert (offset[0].sum() > offset[-1].sum()) == (vertical == "top")
        assert (offset[:, 0].sum() > offset[:, -1].sum()) == (horizontal == "left")


# --- Sections and labels ---


def test_dual_heterogeneity_is_a_section_of_its_own(tmp_path):
    write_run(tmp_path / "plain", strategy="fedavg", dataset="fashion-mnist")
    write_dual(tmp_path / "dual", strategy="fedavg", system=0.4, average=0.4)
    plain, dual = load_study([tmp_path]).sections
    assert (plain.dual, dual.dual) == (False, True)
    assert plain.labels == dual.labels == ("fedavg",)


def test_options_of_routing_and_data_tell_runs_apart(tmp_path):
    common = {"strategy": "feddrm", "dual__examples": 20000}
    write_dual(tmp_path / "a", **common)
    write_dual(tmp_path / "b", routing__momentum=0.5, **common)
    write_dual(tmp_path / "c", **common, dual__alpha_intra=0.5)
    study = load_study([tmp_path])
    assert study.left_out == ()
    assert set(study.sections[0].labels) == {
        "feddrm",
        "feddrm routing.momentum=0.5",
        "feddrm dual.alpha-intra=0.5",
    }


# --- Table 1 ---


def test_table_1_holds_accuracies_beside_the_papers_and_paired_differences(tmp_path):
    # FedSPM minus FedDRM in system accuracy by seed: 4, 6 and 5 points.
    for seed, drm, spm in ((42, 0.50, 0.54), (43, 0.48, 0.54), (44, 0.46, 0.51)):
        common = {"seed": seed, "routing": 0.99}
        write_dual(tmp_path / f"d{seed}", strategy="feddrm", system=drm, average=drm, **common)
        write_dual(
            tmp_path / f"s{seed}", strategy="fedspm", system=spm, average=spm + 0.01, **common
        )
    write_dual(tmp_path / "avg", strategy="fedavg", seed=42, system=0.4, average=0.4)
    table = mixture.routing_table(section_of(tmp_path))
    rows = rows_by_name(table)
    half = stats.t.ppf(0.975, 2) / np.sqrt(3)  # the differences' standard deviation is 1
    assert rows["fedspm"] == {
        "n": "3",
        "System (%)": "53.00 ± 1.73",
        "System, paper": "58.82 ± 0.61",
        "Average (%)": "54.00 ± 1.73",
        "Average, paper": "58.86 ± 0.62",
        "System minus average (points)": "-1.00 ± 0.00",
        "Routing (%)": "99.00 ± 0.00",
        "System minus FedDRM (points)": f"+5.00 [{5 - half:+.2f}, {5 + half:+.2f}]",
        "System minus FedDRM, paper": "+5.14",
    }
    assert rows["fedavg"]["System minus FedDRM (points)"] == "-10.00"
    assert rows["fedavg"]["Routing (%)"] == "–"  # noqa: RUF001
    assert rows["feddrm"]["System minus FedDRM (points)"] == "–"  # noqa: RUF001


def test_a_data_set_that_the_paper_lacks_has_no_column_of_it(tmp_path):
    write_dual(tmp_path / "a", dataset="digits", strategy="feddrm", system=0.5, average=0.5)
    table = mixture.routing_table(section_of(tmp_path))
    assert not any("paper" in column.name for column in table.columns)
    assert "paper" not in table.note


def test_each_regime_is_compared_with_feddrm_of_the_same(tmp_path):
    rich = {"embedding": 32, "embed_norm": "ln-relu"}
    accuracies = {"average": 0.5, "routing": 1.0}
    write_dual(tmp_path / "d", strategy="feddrm", system=0.5, embedding=32, **accuracies)
    write_dual(tmp_path / "dr", strategy="feddrm", system=0.7, **rich, **accuracies)
    write_dual(tmp_path / "s", strategy="fedspm", system=0.54, embedding=32, **accuracies)
    write_dual(tmp_path / "sr", strategy="fedspm", system=0.67, **rich, **accuracies)
    rows = rows_by_name(mixture.routing_table(section_of(tmp_path)))
    gaps = {
        label: (row["System minus FedDRM (points)"], row["FedDRM is"])
        for label, row in rows.items()
        if label.startswith("fedspm")
    }
    assert gaps == {
        "fedspm": ("+4.00", "feddrm"),
        "fedspm embed-norm=ln-relu": ("-3.00", "feddrm embed-norm=ln-relu"),
    }


@pytest.mark.parametrize(
    "other", [{"dual__alpha_intra": 0.5}, {"num_server_rounds": 7}, {"lr_schedule": "constant"}]
)
def test_other_data_or_other_training_is_no_comparison(tmp_path, other):
    accuracies = {"system": 0.5, "average": 0.5, "routing": 1.0}
    write_dual(tmp_path / "d", strategy="feddrm", **accuracies)
    write_dual(tmp_path / "s", strategy="fedspm", **accuracies, **other)
    section = section_of(tmp_path)
    label = next(label for label in section.labels if label.startswith("fedspm"))
    assert mixture.basis(section, label) == ""
    row = rows_by_name(mixture.routing_table(section))[label]
    assert row["System minus FedDRM (points)"] == "–"  # noqa: RUF001


# --- The components ---

E_STEP = {"agreement": 0.9, "accuracy-by-w": 0.8, "accuracy-by-x": 0.7, "purity": 0.95}


def test_the_components_table_is_of_the_last_round(tmp_path):
    last = E_STEP | {"effective-components": 2.5}
    early = {key: value / 2 for key, value in last.items()}
    run = write_dual(tmp_path / "s", strategy="fedspm", rounds=[early, last])
    # The larger components hold 30 of 40 and 50 of 60 images: 80 of 100.
    write_partition(run, component_counts=[[10, 30], [50, 10]])
    assert rows_by_name(components.components_table(section_of(tmp_path))) == {
        "fedspm": {
            "n": "1",
            "Larger true component (%)": "80.0",
            "Purity of w (%)": "95.0",
            "Agreement of w and P(c|x) (%)": "90.0",
            "Train accuracy, head by w (%)": "80.0",
            "Train accuracy, head by P(c|x) (%)": "70.0",
            "By w minus by P(c|x) (points)": "+10.0",
            "Effective components": "2.50",
        }
    }


def test_diagnostics_are_means_over_seeds(tmp_path):
    for seed, purity in ((42, 0.6), (43, 0.8)):
        rounds = [E_STEP | {"purity": purity}, E_STEP | {"purity": purity + 0.1}]
        write_dual(tmp_path / f"s{seed}", strategy="fedspm", seed=seed, rounds=rounds)
    write_dual(tmp_path / "d", strategy="feddrm", rounds=[E_STEP | {"accuracy-by-x": 0.5}])
    write_dual(tmp_path / "a", strategy="fedavg", system=0.4, average=0.4)
    panels = plots.diagnostics(section_of(tmp_path)).axes
    assert panels[0].get_title() == "purity of w (%)"
    drawn = {line.get_label(): line.get_xydata() for line in panels[0].lines}
    assert drawn.keys() == {"fedspm"}
    np.testing.assert_allclose(drawn["fedspm"], [[1, 70], [2, 80]])
    by_x = {line.get_label(): line.get_xydata() for line in panels[3].lines}
    np.testing.assert_allclose(by_x["feddrm"], [[1, 50]])
    heads = [panel.lines[-1].get_ydata()[0] for panel in panels[2:]]
    np.testing.assert_allclose(heads, [80, 70])


def test_what_natural_clients_lack_has_no_panel(tmp_path):
    e_step = {key: value for key, value in E_STEP.items() if key != "purity"}
    write_dual(tmp_path / "s", strategy="fedspm", rounds=[e_step, e_step])
    panels = plots.diagnostics(section_of(tmp_path)).axes
    assert [panel.get_title() for panel in panels] == [
        "w and P(c|x) agree (%)",
        "train accuracy, head by w (%)",
        "train accuracy, head by P(c|x) (%)",
    ]


def test_impact_of_components_is_a_line_for_each_choice_of_encoders(tmp_path):
    def write(name, system, **options):
        accuracies = {"system": system, "average": system + 0.1, "routing": 1.0}
        for seed, more in ((42, 0.0), (43, 0.02)):
            own = accuracies | {"system": system + more}
            write_dual(tmp_path / f"{name}{seed}", seed=seed, **own, **options)

    write("drm", 0.5, strategy="feddrm")
    write("two", 0.6, strategy="fedspm", fedspm__components=2)
    # A line is of the seeds that all its points have.
    write_dual(tmp_path / "two44", seed=44, system=0.1, strategy="fedspm", fedspm__components=2)
    write("three", 0.7, strategy="fedspm")
    write("each", 0.4, strategy="fedspm", fedspm__encoders="per-component")
    write("mu", 0.9, strategy="fedspm", routing__momentum=0.5)  # has no other C to be set beside
    write("same", 0.9, strategy="fedspm", fedspm__init="identical")
    for strategy in ("feddrm", "fedspm"):  # of Table 2
        write(f"skewed-{strategy}", 0.9, strategy=strategy, dual__alpha_inter=0.5)
    figure = plots.impact_of_components(section_of(tmp_path))
    system, average = (
        {each.get_label(): each.lines[0].get_xydata() for each in axes.containers}
        for axes in figure.axes
    )
    assert system.keys() == {"1x", "Cx"}
    np.testing.assert_allclose(system["1x"], [[1, 51], [2, 61], [3, 71]])
    np.testing.assert_allclose(system["Cx"], [[1, 51], [3, 41]])
    np.testing.assert_allclose(average["1x"], [[1, 60], [2, 70], [3, 80]])


def test_one_component_is_feddrm_where_that_has_more_seeds(tmp_path):
    one, two = ({"strategy": "fedspm", "fedspm__components": c} for c in (1, 2))
    for name, seed, options in (
        ("one42", 42, one),
        ("drm42", 42, {"strategy": "feddrm"}),
        ("two42", 42, two),
        ("two43", 43, two),
    ):
        write_dual(tmp_path / name, seed=seed, **options)
    before = plots.component_lines(section_of(tmp_path))["1x"]
    write_dual(tmp_path / "drm43", seed=43, strategy="feddrm")
    after = plots.component_lines(section_of(tmp_path))["1x"]
    assert before[2] == after[2]
    assert (after[1], before[1] != after[1]) == ("feddrm", True)


def test_lines_of_two_regimes_are_named_by_what_differs(tmp_path):
    for norm in ("none", "ln-relu"):
        for count in (1, 2):
            write_dual(
                tmp_path / f"{norm}{count}",
                strategy="fedspm",
                fedspm__components=count,
                embedding=8,
                embed_norm=norm,
            )
    lines = plots.component_lines(section_of(tmp_path))
    assert {name: sorted(own) for name, own in lines.items()} == {
        "1x": [1, 2],
        "1x embed-norm=none": [1, 2],
    }


def test_the_confusion_is_of_the_last_evaluation_over_all_seeds(tmp_path):
    for seed, table in ((42, [[3, 1], [0, 2]]), (43, [[5, 1], [2, 0]])):
        rounds = [{"routing-confusion": [[0, 9], [9, 0]]}, {"routing-confusion": table}, {}]
        write_dual(tmp_path / f"s{seed}", strategy="fedspm", seed=seed, rounds=rounds)
    (axes,) = plots.confusion(section_of(tmp_path)).axes
    # Sums: [[8, 2], [2, 2]].
    np.testing.assert_allclose(axes.images[0].get_array(), [[80, 20], [50, 50]])
    assert [text.get_text() for text in axes.texts] == ["80", "20", "50", "50"]
    assert axes.get_title() == "fedspm"


# --- Time ---


def test_the_time_of_a_round_adds_up(tmp_path):
    # Two rounds of 10 s and 5 s of the bridge errors, the second evaluated for 2 of the 10. Four
    # clients' E-steps of 1.5 s fit into 3.2 s and their steps of 2 + 1 s into 6.1 s only if two
    # run at once.
    second = {"seconds-e-step": 3.2, "seconds-training": 6.1}
    second |= {"seconds": 15.0, "seconds-bridge": 5.0}
    rounds = [second | {"seconds-evaluation": each} for each in (0.0, 2.0)]
    run = write_dual(tmp_path / "s", strategy="fedspm", rounds=rounds)
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    del rows[0]["accuracy"]
    write_rows(run / "rounds.jsonl", rows)
    work = {"seconds-e-step": 1.5, "seconds-supervised": 2.0, "seconds-router": 1.0}
    clients = [{"round": t, "partition": i} | work for t in (1, 2) for i in range(4)]
    write_rows(run / "clients.jsonl", clients)
    row = rows_by_name(durations.duration_table(section_of(tmp_path)))["fedspm"]
    assert row == {
        "n": "1",
        "Clients at once": "2",
        "E-step (s)": "3.00",
        "E-step (%)": "30.0",
        "Supervised steps (s)": "4.00",
        "Supervised steps (%)": "40.0",
        "Density ratio steps (s)": "2.00",
        "Density ratio steps (%)": "20.0",
        "Flower and server (s)": "0.00",
        "Flower and server (%)": "0.0",
        "Evaluation (s)": "2.00",
        "Evaluation (%)": "10.0",
    }


# --- Bridge errors ---


def point(gradient, surrogate_gradient, rise, surrogate_rise, *, feasible=True):
    values = {"gradient-norm2": gradient, "surrogate-gradient-norm2": surrogate_gradient}
    values |= {"f": 1.0, "f-next": 1.0 + rise, "surrogate": 2.0}
    values |= {"surrogate-next": 2.0 + surrogate_rise, "residual": 1e-9, "residual-next": 1e-9}
    return values | {"smallest-weight": 0.25, "empty-pairs": 1, "feasible": feasible}


LOST = dict.fromkeys(point(0, 0, 0, 0)) | {"empty-pairs": 1, "feasible": False}


def write_bridge(directory, momentum, shifted, raw=LOST, **options):
    """A run that measures in every other round; raw gamma is feasible in none unless given."""
    rounds = []
    for each in shifted:
        rounds += [{}, {"bridge": {"raw": raw, "shifted": each}}]
    return write_dual(
        directory,
        strategy="fedspm",
        routing__momentum=momentum,
        routing__steps=2,
        rounds=rounds,
        **options,
    )


COURSE = [
    point(4.0, 2.0, 0.5, 0.2),
    LOST,
    point(2.0, 1.0, 0.1, 0.3),
    point(3.0, 1.5, 0.3, 0.0),
]


def test_bridge_errors_are_of_the_feasible_rounds(tmp_path):
    write_bridge(tmp_path / "run", 0.5, COURSE)
    section = section_of(tmp_path)
    raw, shifted = bridge.bridge_table(section).texts()
    names = [column.name for column in bridge.bridge_table(section).columns]
    # mu_{E,e} is 1.5, then 1: a = 2.5, s = 3.25. Each ratio of gradients is 2, so no epsilon is
    # left; deltas 0.3, 0 and 0.3 over sqrt(3).
    assert dict(zip(names, shifted, strict=True)) == {
        "Label": "fedspm routing.steps=2 routing.momentum=0.5",
        "mu": "0.5",
        "a_E": "2.5",
        "s_E": "3.2",
        "gamma": "shifted",
        "n": "1",
        "Rounds measured": "4",
        "Pairs left out": "1.0",
        "Infeasible (%)": "25.0",
        "Gamma2": "2",
        "Mean of ||grad F||^2": "3.00e+00",
        "t^(-1/2) sum of delta": f"{0.6 / np.sqrt(3):.2e}",
        "Mean of epsilon": "0.00e+00",
        "Residual, median": "1.0e-09",
        "Smallest weight": "0.25",
    }
    lost = dict(zip(names, raw, strict=True))
    assert (lost["gamma"], lost["Infeasible (%)"], lost["Gamma2"]) == (
        "raw",
        "100.0",
        "–",  # noqa: RUF001
    )


def test_figure_2_draws_the_variant_with_more_feasible_rounds(tmp_path):
    write_bridge(tmp_path / "half", 0.5, COURSE)
    write_bridge(tmp_path / "none", 0.0, COURSE[:1], raw=point(9.0, 1.0, 0.0, 0.0))
    write_bridge(tmp_path / "lost", 0.9, [LOST, LOST])
    section = section_of(tmp_path)
    assert bridge.usual_variant(section) == "shifted"
    gradient, delta, epsilon = bridge_plot.bridge_errors(section).axes
    lines = {line.get_label(): line.get_xydata() for line in gradient.lines}
    # Rounds 2, 6 and 8 of the feasible ones: means 4, (4 + 2) / 2, (4 + 2 + 3) / 3.
    np.testing.assert_allclose(lines[r"$\mu$ = 0.5"], [[2, 4], [6, 3], [8, 3]])
    np.testing.assert_allclose(lines[r"$\mu$ = 0"], [[2, 4]])
    assert len(lines[r"$\mu$ = 0.9: no feasible round"]) == 0
    deltas = {line.get_label(): line.get_ydata() for line in delta.lines}
    np.testing.assert_allclose(
        deltas[r"$\mu$ = 0.5"], [0.3, 0.3 / np.sqrt(2), 0.6 / np.sqrt(3)], rtol=1e-12
    )
    np.testing.assert_allclose(epsilon.lines[-1].get_ydata(), 0, atol=1e-12)
    assert gradient.get_ylabel() == "gamma shifted, feasible rounds"


def test_runs_that_are_feasible_nowhere_have_a_table_and_no_figure(tmp_path):
    write_bridge(tmp_path / "run", 0.5, [LOST, LOST])
    section = section_of(tmp_path)
    assert bridge_plot.bridge_errors(section) is None
    assert {row[8] for row in bridge.bridge_table(section).texts()} == {"100.0"}


# --- The clients ---


def test_the_grid_shows_the_image_of_each_client_and_component(tmp_path):
    example = np.arange(3 * 2 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 2, 3)
    run = write_dual(tmp_path / "run", strategy="fedavg", num_clients=3)
    save_file({"example": example}, run / "shift.safetensors")
    panels = shifts.shift_grid(section_of(tmp_path)).axes
    drawn = np.array([panel.images[0].get_array() for panel in panels])
    np.testing.assert_array_equal(drawn, example.reshape(6, 2, 2, 3))
    assert [panel.get_ylabel() for panel in panels[::2]] == [
        "client 0\nred, top, left",
        "client 1\nblue, top, left",
        "client 2\nred, bottom, left",
    ]


def test_a_damaged_image_is_named(tmp_path):
    run = write_dual(tmp_path / "run", strategy="fedavg")
    (run / "shift.safetensors").write_bytes(b"cut off")
    with pytest.raises(FedhetError, match=r"file = .*shift\.safetensors.*cannot be read"):
        shifts.shift_grid(section_of(tmp_path))


def test_labels_and_weights_are_stacked_bars_for_each_partition(tmp_path):
    histograms, weights = [[3, 0, 5], [1, 4, 2]], [[0.25, 0.75], [0.6, 0.4]]
    for name, options in {
        "a": {"strategy": "fedavg"},
        "same": {"strategy": "feddrm"},
        "b": {"strategy": "fedavg", "dual__alpha_inter": 0.5},
    }.items():
        run = write_dual(tmp_path / name, **options)
        columns = {"class_histograms_before_shift": histograms, "mixing_weights": weights}
        write_partition(run, **columns)
    section = section_of(tmp_path)
    for figure, values in (
        (shifts.label_bars(section), histograms),
        (shifts.weight_bars(section), weights),
    ):
        assert [axes.get_title() for axes in figure.axes] == [
            "alpha-inter 0.5, alpha-intra 2, seed 42",
            "alpha-inter 1, alpha-intra 2, seed 42",
        ]
        for axes in figure.axes:
            widths = np.array([[bar.get_width() for bar in own] for own in axes.containers])
            starts = np.array([[bar.get_x() for bar in own] for own in axes.containers])
            np.testing.assert_allclose(widths.T, values)
            np.testing.assert_allclose(starts[1], [row[0] for row in values])


# --- The whole report ---


def test_labels_look_different_and_methods_keep_their_looks():
    labels = ["fedavg", "feddrm", "fedspm", *(f"variant {number}" for number in range(18))]
    chosen = style.looks(labels)
    assert len(set(chosen.values())) == len(labels)
    assert to_hex(chosen["fedspm"][0]) == to_hex(style.colour_of("fedspm"))


def test_the_report_shows_what_the_runs_have(tmp_path):
    write_suite(tmp_path, "b", [("fedavg", 42), ("fedspm", 42)])
    write_dual(tmp_path / "fedavg" / "seed42", strategy="fedavg", system=0.4, average=0.4)
    rounds = [E_STEP | {"effective-components": 2.0, "routing-confusion": [[1, 0], [0, 1]]}]
    write_dual(
        tmp_path / "fedspm" / "seed42",
        strategy="fedspm",
        system=0.5,
        average=0.5,
        routing=1.0,
        rounds=rounds,
        embedding=32,
        dual__examples=20000,
    )
    page = write_report([tmp_path], tmp_path / "report")
    text = page.with_name("report.md").read_text()
    assert text.startswith("# FedSPM study: report\n\n**Claims**\n")
    assert "\n## Fashion-MNIST, dual heterogeneity (b)\n" in text
    assert "dual heterogeneity of 20,000 images, alpha-inter 1, alpha-intra 2" in text
    assert "| dual.examples | 20000 | fedspm |" in text
    tables = {path.stem for path in (page.parent / "tables").glob("*.csv")}
    assert tables == {"claims"} | {
        f"fashion-mnist-{name}" for name in ("routing", "components", "all-runs", "settings")
    }
    figures = {path.stem for path in (page.parent / "figures").iterdir()}
    assert figures == {"fashion-mnist-diagnostics", "fashion-mnist-routing-confusion"}


def test_both_papers_share_a_report(tmp_path):
    write_run(tmp_path / "a", strategy="has-fl", dataset="cifar10")
    write_dual(tmp_path / "b", strategy="fedavg", dataset="cifar10", system=0.4, average=0.4)
    page = write_report([tmp_path], tmp_path / "report")
    text = page.with_name("report.md").read_text()
    assert text.startswith("# HAS-FL and FedSPM study: report\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "CIFAR-10",
        "CIFAR-10, dual heterogeneity",
    ]
    tables = {path.stem for path in (page.parent / "tables").glob("*.csv")}
    assert {"claims", "cifar10-table-2", "cifar10-dual-routing"} <= tables
    # Paper A's numbers are of other data than FedAvg's under dual heterogeneity.
    assert "cifar10-dual-table-5" not in tables


@pytest.mark.parametrize(
    "make",
    [
        mixture.routing_table,
        components.components_table,
        bridge.bridge_table,
        durations.duration_table,
        bridge_plot.bridge_errors,
        plots.impact_of_components,
        plots.diagnostics,
        plots.confusion,
        shifts.shift_grid,
        shifts.label_bars,
        shifts.weight_bars,
    ],
)
def test_what_no_run_has_is_left_out(tmp_path, make):
    write_dual(tmp_path / "run", strategy="has-fl")
    assert make(section_of(tmp_path)) is None
