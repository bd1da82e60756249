import csv
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from study_runs import COST, adaptation, write_run, write_suite

from fedhet_app.analysis.study import load_study
from fedhet_app.analysis.tables import audit, cost, paper, side
from fedhet_app.analysis.tables.cells import Column, Estimate, Spread, Table, escaped, shown

SEEDS = (42, 43, 44)


def section_of(tmp_path):
    (section,) = load_study([tmp_path]).sections
    return section


def write_seeds(tmp_path, label, accuracies, **options):
    """A run per seed from 42 on, each with these accuracies."""
    for seed, own in zip(SEEDS, accuracies, strict=False):
        write_run(tmp_path / f"{label}{seed}", seed=seed, accuracies=own, **options)


def rows_by_name(table):
    names = [column.name for column in table.columns]
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in map(tuple, table.texts())}


def test_table_2_holds_best_final_and_width_beside_the_papers(tmp_path):
    write_seeds(
        tmp_path, "has-fl", [(0.75, 0.7), (0.8, 0.8), (0.95, 0.9)], strategy="has-fl", width=0.5
    )
    write_run(tmp_path / "uniform", strategy="uniform", accuracies=(0.6, 0.5), width=0.44)
    table = paper.allocation_table(section_of(tmp_path))
    assert (table.name, table.title) == ("table-2", "Table 2. Sub-model allocation strategies")
    rows = rows_by_name(table)
    # Only seed 42 is shared, so HAS-FL's other two partitions stay out of the comparison.
    assert rows["HAS-FL"] == {
        "n": "1",
        "Best (%)": "75.0",
        "Best, paper": "76.7 ± 4.9",
        "Final (%)": "70.0",
        "Final, paper": "74.5 ± 5.6",
        "Mean p": "0.50",
        "Mean p, paper": "0.52",
    }
    assert rows["Uniform"]["Final (%)"] == "50.0"
    assert rows["Uniform"]["Final, paper"] == "54.5 ± 2.3"
    assert (rows["FjORD"]["n"], rows["FjORD"]["Final (%)"]) == ("0", "–")  # noqa: RUF001
    assert rows["FjORD"]["Best, paper"] == "78.6 ± 3.9"


def test_seeds_spread_by_the_sample_standard_deviation(tmp_path):
    # Finals 70, 80, 90: mean 80, variance (100 + 0 + 100) / 2.
    write_seeds(tmp_path, "has-fl", [(0.75, 0.7), (0.8, 0.8), (0.95, 0.9)], strategy="has-fl")
    table = paper.allocation_table(section_of(tmp_path))
    assert rows_by_name(table)["HAS-FL"]["Final (%)"] == "80.0 ± 10.0"
    assert rows_by_name(table)["HAS-FL"]["n"] == "3"


def test_a_data_set_that_the_paper_lacks_has_no_column_of_it(tmp_path):
    write_run(tmp_path / "run", strategy="fjord", dataset="digits")
    table = paper.allocation_table(section_of(tmp_path))
    assert [column.name for column in table.columns] == [
        "Algorithm",
        "n",
        "Best (%)",
        "Final (%)",
        "Mean p",
    ]
    assert list(rows_by_name(table)) == ["FjORD"]


def test_femnist_stands_beside_emnists_numbers_under_its_own_name(tmp_path):
    write_run(tmp_path / "run", strategy="uniform", dataset="femnist")
    row = rows_by_name(paper.allocation_table(section_of(tmp_path)))["Uniform"]
    assert row["Final, paper, EMNIST"] == "9.4 ± 3.8"


def test_shakespeare_has_table_6(tmp_path):
    write_run(tmp_path / "run", strategy="fjord", dataset="shakespeare")
    table = paper.allocation_table(section_of(tmp_path))
    assert table.name == "table-6"
    assert rows_by_name(table)["FjORD"]["Final, paper"] == "32.6 ± 1.3"


def test_table_3_shows_the_fall_from_the_peak(tmp_path):
    # On: 80 to 78 and 80 to 76; off: 60 to 50 and 60 to 30.
    write_seeds(tmp_path, "on", [(0.8, 0.78), (0.8, 0.76)], strategy="has-fl")
    off = {"strategy": "has-fl", "has_fl__coverage": False}
    write_seeds(tmp_path, "off", [(0.6, 0.5), (0.6, 0.3)], **off)
    rows = rows_by_name(paper.coverage_table(section_of(tmp_path)))
    assert rows["HAS-FL"]["Peak to final (points)"] == "-3.0 ± 1.4"
    assert rows["HAS-FL"]["Peak to final, paper"] == "-2.2"
    assert rows["HAS-FL, guarantee off"]["Peak to final (points)"] == "-20.0 ± 14.1"
    assert rows["HAS-FL, guarantee off"]["Peak to final, paper"] == "-16.8"
    assert rows["HeteroFL"]["n"] == "0"


def test_a_fall_is_between_evaluations_on_the_same_examples(tmp_path):
    # On 500 examples 80 to 76; the 90 of the whole test set is another measurement.
    write_run(
        tmp_path / "on", strategy="has-fl", accuracies=(0.7, 0.8, 0.76, 0.9), evaluate_examples=500
    )
    write_run(tmp_path / "off", strategy="heterofl", accuracies=(0.8, 0.9), evaluate_every=3)
    write_run(tmp_path / "once", strategy="has-fl", has_fl__coverage=False, evaluate_examples=500)
    (tmp_path / "once" / "rounds.jsonl").write_text(
        '{"round": 3, "accuracy": 0.7, "loss": 1, "replies": 2, "upload-bytes": 200}'
    )
    table = paper.coverage_table(section_of(tmp_path))
    falls = {name: row["Peak to final (points)"] for name, row in rows_by_name(table).items()}
    assert falls == {
        "HAS-FL": "-4.0",
        "HAS-FL, guarantee off": "–",  # noqa: RUF001
        "HeteroFL": "+0.0",
    }
    assert "the last round's, on all of it, is left out" in table.note


def test_table_5_compares_with_full_models_and_adds_rows_that_the_paper_lacks(tmp_path):
    for strategy in ("fedavg", "has-fl", "fedrolex"):
        write_run(tmp_path / strategy, strategy=strategy, width=1.0)
    rows = rows_by_name(paper.comparison_table(section_of(tmp_path)))
    assert list(rows) == [
        "FedAvg",
        "SCAFFOLD",
        "FedProx",
        "HAS-FL",
        "Random-budget",
        "FedRolex",
    ]
    assert rows["FedAvg"]["Final, paper"] == "88.2 ± 0.6"
    assert rows["SCAFFOLD"]["Best, paper"] == "86.7 ± 0.9"
    assert rows["FedRolex"]["Final, paper"] == "–"  # noqa: RUF001


def test_tables_without_a_run_of_theirs_are_left_out(tmp_path):
    write_run(tmp_path / "run", strategy="heterofl")
    section = section_of(tmp_path)
    assert paper.allocation_table(section) is None
    assert paper.comparison_table(section) is None
    assert side.difference_table(section) is None
    assert side.stale_table(section) is None
    assert cost.cost_table(section) is None
    assert side.settings_table(section) is None
    assert paper.coverage_table(section) is not None


def test_the_matched_control_is_paired_by_seed(tmp_path):
    # Differences 1, 2, 3: mean 2, deviation 1, half width 4.3027 / sqrt(3) = 2.484.
    write_seeds(tmp_path, "a", [(0.71,), (0.52,), (0.93,)], strategy="has-fl", width=0.52)
    write_seeds(tmp_path, "b", [(0.7,), (0.5,), (0.9,)], strategy="random-budget", width=0.49)
    table = side.difference_table(section_of(tmp_path))
    row = rows_by_name(table)["HAS-FL minus Random-budget"]
    assert row == {
        "n": "3",
        "Mean difference (points)": "+2.0 [-0.5, +4.5]",
        "Per seed (points)": "42: +1.0, 43: +2.0, 44: +3.0",
        "Difference of mean p": "+0.030",
        "paper": "-0.1",
    }
    estimate = table.rows[0][2]
    half = stats.t.ppf(0.975, 2) / math.sqrt(3)
    assert (estimate.low, estimate.high) == pytest.approx((2 - half, 2 + half))


def test_one_pair_has_a_difference_and_no_interval(tmp_path):
    write_run(tmp_path / "a", accuracies=(0.6,))
    write_run(tmp_path / "b", strategy="fedavg", accuracies=(0.9,))
    rows = rows_by_name(side.difference_table(section_of(tmp_path)))
    assert rows["FedAvg minus HAS-FL"]["Mean difference (points)"] == "+30.0"
    assert rows["FedAvg minus HAS-FL"]["paper"] == "+13.7"


def test_stale_parameters_as_they_are_and_zeroed(tmp_path):
    for seed, cut in ((42, 0.6), (43, 0.7)):
        stale = {"width": 0.5, "as-is": 0.5, "classifier-zeroed": 0.55, "slice": cut}
        extra = {"stale": stale}
        write_run(tmp_path / f"u{seed}", strategy="uniform", seed=seed, extra=extra)
    write_run(tmp_path / "avg", strategy="fedavg")
    rows = rows_by_name(side.stale_table(section_of(tmp_path)))
    # Gains 10 and 20: mean 15, deviation 7.071, half width 12.706 * 7.071 / sqrt(2) = 63.5.
    assert rows == {
        "Uniform": {
            "n": "2",
            "Trained width": "0.50 ± 0.00",
            "As trained (%)": "50.0 ± 0.0",
            "Classifier's outer columns zeroed (%)": "55.0 ± 0.0",
            "All outer channels zeroed (%)": "65.0 ± 7.1",
            "All zeroed minus as trained (points)": "+15.0 [-48.5, +78.5]",
        }
    }


def test_cost_is_a_share_of_the_full_models(tmp_path):
    write_run(tmp_path / "run", cost=COST)
    table = cost.cost_table(section_of(tmp_path))
    assert table.texts() == [
        ["cnn, small", "0.50", "26", "250", "104", "25.0", "25.0", "about 25 %"],
        ["cnn, small", "1.00", "104", "1,000", "416", "100.0", "100.0", "–"],  # noqa: RUF001
    ]


@pytest.fixture
def with_a_paper_size_network(tmp_path):
    """A sweep with a run that is there for its cost alone, though it would fit other tables."""
    write_suite(tmp_path, "s", [("heterofl", 42), ("paper-size", 42)])
    write_run(tmp_path / "heterofl" / "seed42", strategy="heterofl", cost=COST)
    capacity = [0.25, 0.5, 0.75, 1.0, 0.5, 0.75]
    rows = adaptation(1, capacity=capacity, divergence=[3.0, 1, 4, 1, 5, 9], width=capacity)
    stale = {"width": 0.5, "as-is": 0.1, "classifier-zeroed": 0.1, "slice": 0.1}
    large = [row | {"params": 10 * row["params"]} for row in COST]
    write_run(
        tmp_path / "paper-size" / "seed42",
        strategy="heterofl",
        model_preset="paper",
        clients=rows,
        tv=[0.1, 0.5, 0.2, 0.4, 0.3, 0.6],
        cost=large,
        extra={"stale": stale},
    )
    return section_of(tmp_path)


def test_the_paper_size_network_is_in_the_table_of_costs(with_a_paper_size_network):
    texts = cost.cost_table(with_a_paper_size_network).texts()
    assert [row[:3] for row in texts] == [
        ["cnn, small", "0.50", "26"],
        ["cnn, small", "1.00", "104"],
        ["cnn, paper", "0.50", "260"],
        ["cnn, paper", "1.00", "1,040"],
    ]


def test_a_run_for_its_cost_alone_is_in_no_table_of_methods(with_a_paper_size_network):
    section = with_a_paper_size_network
    assert section.labels == ("heterofl", "paper-size")
    assert audit.audit_labels(section) == {}
    assert side.stale_table(section) is None
    assert rows_by_name(paper.coverage_table(section))["HeteroFL"]["n"] == "1"
    assert paper.allocation_table(section) is paper.comparison_table(section) is None
    assert list(rows_by_name(side.all_runs_table(section))) == ["heterofl", "paper-size"]


def test_upload_is_a_share_of_the_full_models_bytes(tmp_path):
    write_run(tmp_path / "counted", cost=COST, upload=104)
    write_run(tmp_path / "avg", strategy="fedavg", upload=200)
    write_run(tmp_path / "fjord", strategy="fjord", upload=50)
    section = section_of(tmp_path)
    shares = {run.label: cost.relative_upload(section, run) for run in section.runs}
    assert shares == {"has-fl": 0.25, "fedavg": 1.0, "fjord": 0.25}


def test_upload_is_unknown_without_a_full_model(tmp_path):
    write_run(tmp_path / "run")
    section = section_of(tmp_path)
    assert cost.relative_upload(section, section.runs[0]) is None


def test_all_runs_shows_every_label_and_hides_no_divergence(tmp_path):
    write_seeds(tmp_path, "a", [(0.5,), (0.6,)], strategy="has-fl", has_fl__gamma=0.5)
    write_run(tmp_path / "b42", strategy="scaffold", accuracies=(0.5,), losses=[2.0])
    write_run(tmp_path / "b43", strategy="scaffold", seed=43, accuracies=(0.1,), losses=[None])
    rows = rows_by_name(side.all_runs_table(section_of(tmp_path)))
    assert rows["has-fl has-fl.gamma=0.5"]["Final by seed (%)"] == "42: 50.0, 43: 60.0"
    assert rows["has-fl has-fl.gamma=0.5"]["Final loss (nats)"] == "1.000 ± 0.000"
    assert rows["scaffold"]["Final loss (nats)"] == "not finite"
    assert rows["scaffold"]["Final (%)"] == "30.0 ± 28.3"


def test_options_that_differ_between_labels_are_listed(tmp_path):
    write_run(tmp_path / "a", strategy="scaffold", momentum=0.0)
    write_run(tmp_path / "b", strategy="fedavg")
    write_run(tmp_path / "c", strategy="fjord")
    table = side.settings_table(section_of(tmp_path))
    assert table.rows == (
        ("momentum", "0.0", "scaffold"),
        ("momentum", "0.9", "fedavg, fjord"),
    )


@pytest.fixture
def two_audited_runs(tmp_path):
    rng = np.random.default_rng(3)
    capacity = np.array([0.25, 0.5, 0.75, 1.0])[np.arange(12) % 4]
    variables = {}
    for seed in (42, 43):
        skew, divergence = rng.uniform(0.2, 0.8, 12), 2 - capacity + rng.standard_normal(12)
        widths = np.minimum(capacity, rng.uniform(0.2, 1, 12))
        rows = adaptation(
            60,
            capacity=capacity.tolist(),
            divergence=divergence.tolist(),
            allocated_width=widths.tolist(),
        )
        write_run(tmp_path / f"run{seed}", seed=seed, clients=rows, tv=skew)
        variables[seed] = (divergence, skew, capacity, widths)
    return section_of(tmp_path), variables


def partial_r(a, b, z):
    ab, az, bz = (stats.pearsonr(*pair).statistic for pair in ((a, b), (a, z), (b, z)))
    return (ab - az * bz) / math.sqrt((1 - az**2) * (1 - bz**2))


def test_table_4_holds_each_seed_and_all_of_them(two_audited_runs):
    section, variables = two_audited_runs
    groups = audit.audit_labels(section)
    table = audit.correlation_table(section, groups)
    assert [row[0] for row in table.rows] == ["seed 42", "seed 43", "pooled"]
    names = [column.name for column in table.columns]
    to_capacity = names.index("r(estimate, capacity)")
    to_skew = names.index("r(estimate, TV | capacity)")
    for row, (divergence, skew, capacity, _) in zip(table.rows, variables.values(), strict=False):
        expected = stats.pearsonr(divergence, capacity)
        own = expected.confidence_interval(0.95)
        cell = row[to_capacity]
        assert (cell.value, cell.low, cell.high) == pytest.approx(
            (expected.statistic, own.low, own.high)
        )
        assert row[to_skew].value == pytest.approx(partial_r(divergence, skew, capacity))
    z = np.mean([np.arctanh(row[to_capacity].value) for row in table.rows[:2]])
    assert table.rows[2][to_capacity].value == pytest.approx(np.tanh(z))
    published = names.index("r(estimate, TV | capacity), paper")
    assert [row[published] for row in table.rows] == [-0.60, -0.47, None]


@pytest.mark.usefixtures("two_audited_runs")
def test_the_audit_covers_labels_whose_widths_or_estimates_vary(tmp_path):
    rows = adaptation(1, capacity=[0.5, 1.0] * 3, width=[1.0] * 6)
    write_run(tmp_path / "avg", strategy="fedavg", clients=rows, tv=[0.1, 0.2, 0.3] * 2)
    groups = audit.audit_labels(section_of(tmp_path))
    table = audit.audit_table(groups)
    assert [row[:2] for row in table.rows] == [("has-fl", 2)]
    said = audit.verdicts(groups)
    assert said
    assert all(sentence.startswith("has-fl: ") for sentence in said)


def test_what_is_undefined_in_an_audit_says_why(tmp_path):
    capacity = [0.25, 0.5, 0.75, 1.0, 0.5, 0.75]
    widths = [0.25, 0.4, 0.7, 0.5, 0.3, 0.2]
    rows = adaptation(1, capacity=capacity, width=widths)
    tv = [0.1, 0.5, 0.2, 0.4, 0.3, 0.6]
    write_run(tmp_path / "run", strategy="fjord", clients=rows, tv=tv)
    groups = audit.audit_labels(section_of(tmp_path))
    table = audit.audit_table(groups)
    assert rows_by_name(table)["fjord"]["r(estimate, TV)"] == "undefined"
    assert "Undefined for fjord: no numeric column 'divergence'" in table.note
    (sentence,) = (s for s in audit.verdicts(groups) if "caution" not in s)
    assert "widths" in sentence
    assert audit.correlation_table(section_of(tmp_path), groups) is None


@pytest.mark.parametrize(
    ("cell", "form", "text"),
    [
        (None, ".1f", "–"),  # noqa: RUF001
        (math.nan, ".1f", "–"),  # noqa: RUF001
        ("as | is", ".1f", "as | is"),
        (1234, ".1f", "1,234"),
        (0.25, ".2f", "0.25"),
        (-0.04, "+.1f", "+0.0"),
        (-0.04, ".1f", "0.0"),
        (Spread(mean=2.0, std=1.0), "+.1f", "+2.0 ± 1.0"),
        (Spread(mean=2.0), ".1f", "2.0"),
        (Estimate(value=1.0, low=-1.0, high=3.0), "+.1f", "+1.0 [-1.0, +3.0]"),
        (Estimate(value=1.0, low=math.nan, high=math.nan), "+.1f", "+1.0"),
        (Estimate(value=math.nan, low=0.0, high=0.0, reason="constant"), ".1f", "undefined"),
    ],
)
def test_cells_are_shown(cell, form, text):
    assert shown(cell, form) == text


numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=2, max_size=6))
def test_a_spread_is_numpys(values):
    spread = Spread.of(values)
    scale = max(1.0, *map(abs, values))
    assert spread.mean == pytest.approx(np.mean(values), abs=1e-9 * scale)
    assert spread.std == pytest.approx(np.std(values, ddof=1), abs=1e-9 * scale)


@given(st.lists(st.tuples(st.text(max_size=8), numbers, numbers), min_size=1, max_size=4))
def test_csv_keeps_every_number_and_text(rows):
    table = Table(
        name="t",
        title="",
        columns=(Column(name="name"), Column(name="x")),
        rows=tuple((text, Spread(mean=mean, std=std)) for text, mean, std in rows),
    )
    read = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert read[0] == ["name", "x", "x (std)"]
    on_one_line = [(" ".join(text.split()), mean, std) for text, mean, std in rows]
    assert [(text, float(mean), float(std)) for text, mean, std in read[1:]] == on_one_line


def test_csv_has_a_column_for_each_number_of_a_cell():
    table = Table(
        name="t",
        title="",
        columns=(Column(name="r"), Column(name="n")),
        rows=((Estimate(value=0.5, low=0.25, high=0.75), 3), (None, 4)),
    )
    assert table.csv() == "r,r (low),r (high),n\n0.5,0.25,0.75,3\n,,,4\n"


@given(st.text())
def test_markdown_cells_cannot_break_the_table(text):
    cell = escaped(text)
    assert "\n" not in cell
    assert "<" not in cell
    assert "|" not in cell.replace("\\\\", "").replace("\\|", "")


def test_markdown_is_a_table():
    table = Table(name="t", title="", columns=(Column(name="a|b"),), rows=(("x",), (1.25,)))
    assert table.markdown() == "| a\\|b |\n| --- |\n| x |\n| 1.2 |"
