import json

import numpy as np
import pytest
from running import run
from scipy import stats

from fedhet_app.analysis.audit.audit import audit, check_column
from fedhet_app.analysis.audit.measures import LABELS
from fedhet_app.config import DEFAULTS
from fedhet_app.errors import FedhetError

TIERS, PROBS = [0.25, 0.5, 0.75, 1.0], [0.25, 0.4, 0.2, 0.15]
DECISIVE = "estimate-tv-given-capacity"


def rows_of(columns, server_round=60):
    """A row per client in one round: columns are (N,) arrays by name."""
    table = {name: np.asarray(values).tolist() for name, values in columns.items()}
    clients = len(next(iter(table.values())))
    return [
        {"round": server_round, "partition": i, "trained": True}
        | {name: values[i] for name, values in table.items()}
        for i in range(clients)
    ]


def write_run(directory, tv, rows, summary=(0.8, 0.5), **options):
    """A run directory from its parts; ``summary`` is final accuracy and mean width, or none."""
    directory.mkdir(parents=True)
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    config = {**DEFAULTS, "strategy": "has-fl", **keys, "results-dir": str(directory)}
    (directory / "config.json").write_text(json.dumps({"config": config}))
    skew = {"total-variation": np.asarray(tv).tolist()}
    (directory / "partition.json").write_text(json.dumps(skew))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "clients.jsonl").write_text(lines)
    if summary:
        content = {"final-accuracy": summary[0], "mean-width": summary[1]}
        (directory / "summary.json").write_text(json.dumps(content))
    return directory


@pytest.fixture
def clients():
    """Twenty clients: capacity, skew, an estimate that follows capacity, and widths."""
    rng = np.random.default_rng(5)
    capacity = np.array(TIERS)[np.arange(20) % 4]
    divergence = 2 - capacity + 0.3 * rng.standard_normal(20)
    return {
        "tv": rng.uniform(0.2, 0.8, 20),
        "capacity": capacity,
        "divergence": divergence,
        "allocated-width": np.minimum(capacity, 0.4 + 0.25 * divergence),
        "examples": rng.integers(20, 900, 20),
    }


def only(result):
    (group,) = result.groups
    return group


def closed_form(a, b, z):
    """Spec 1.12: the partial correlation from three plain ones."""
    ab, az, bz = (np.corrcoef(*pair)[0, 1] for pair in ((a, b), (a, z), (b, z)))
    return (ab - az * bz) / np.sqrt((1 - az**2) * (1 - bz**2))


def test_the_correlations_of_a_run_are_those_of_its_columns(tmp_path, clients):
    tv, columns = clients.pop("tv"), clients
    directory = write_run(tmp_path / "run", tv, rows_of(columns))
    group = only(audit([directory]))
    found = {key: each.r for key, each in group.runs[0].correlations.items()}
    capacity, estimate = columns["capacity"], columns["divergence"]
    assert found["estimate-tv"] == pytest.approx(stats.pearsonr(estimate, tv).statistic)
    assert found["estimate-capacity"] == pytest.approx(stats.pearsonr(estimate, capacity).statistic)
    assert found["tv-capacity"] == pytest.approx(stats.pearsonr(tv, capacity).statistic)
    assert found[DECISIVE] == pytest.approx(closed_form(estimate, tv, capacity))
    both = np.column_stack([np.ones(20), capacity, columns["examples"]])
    left = [v - both @ np.linalg.lstsq(both, v)[0] for v in (estimate, np.asarray(tv))]
    assert found["estimate-tv-given-capacity-examples"] == pytest.approx(np.corrcoef(left)[0, 1])
    widths = columns["allocated-width"]
    assert found["width-tv-given-capacity"] == pytest.approx(closed_form(widths, tv, capacity))
    tiers = [capacity == tier for tier in TIERS]
    z = [np.arctanh(stats.spearmanr(estimate[at], tv[at]).statistic) for at in tiers]
    assert found["estimate-tv-within-tiers"] == pytest.approx(np.tanh(np.mean(z)))
    pooled = {key: each.r for key, each in group.pooled.items()}
    assert pooled == pytest.approx(found)
    half = 1.959963984540054 / 4
    ends = np.tanh(np.arctanh(found[DECISIVE]) + np.array([-half, half]))
    decisive = group.pooled[DECISIVE]
    assert (decisive.low, decisive.high) == pytest.approx(tuple(ends))
    assert (decisive.n, decisive.k) == (20, 1)
    assert (group.runs[0].adaptations, group.runs[0].read_at) == (1, 60)


def test_the_estimate_is_that_of_the_last_round_with_all_clients(tmp_path, clients):
    tv = clients.pop("tv")
    early = rows_of({**clients, "divergence": np.arange(20.0)}, 40)
    late = rows_of({**clients, "divergence": -np.arange(20.0)}, 65)[:7]
    directory = write_run(tmp_path / "run", tv, [*early, *rows_of(clients, 60), *late])
    measured = only(audit([directory])).runs[0]
    expected = stats.pearsonr(clients["divergence"], tv).statistic
    assert measured.correlations["estimate-tv"].r == pytest.approx(expected)
    assert (measured.read_at, measured.adaptations) == (60, 3)


def test_where_no_round_has_all_clients_means_over_rounds_are_taken(tmp_path):
    """FjORD: half the clients a round, another width each time; client 9 never trains."""
    rng = np.random.default_rng(2)
    capacity, tv = rng.choice(TIERS, 10), rng.uniform(0, 1, 10)
    rows, widths = [], [[] for _ in range(10)]
    for server_round in range(1, 21):
        for client in rng.permutation(9)[:5].tolist():
            widths[client].append(float(rng.choice(TIERS)))
            row = {"round": server_round, "partition": client, "capacity": capacity[client]}
            rows.append({**row, "width": widths[client][-1]})
    directory = write_run(tmp_path / "run", tv, rows, strategy="fjord")
    measured = only(audit([directory], column="width")).runs[0]
    means = np.array([np.mean(each) for each in widths[:9]])
    expected = closed_form(means, tv[:9], capacity[:9])
    assert measured.correlations["width-tv-given-capacity"].r == pytest.approx(expected)
    assert measured.correlations[DECISIVE].r == pytest.approx(expected)
    assert (measured.correlations[DECISIVE].n, measured.read_at, measured.adaptations) == (9, 0, 0)
    assert measured.notes == ()


@pytest.mark.parametrize("not_finite", [None, float("nan"), float("inf")])
def test_estimates_that_are_not_finite_make_way_for_the_round_before_and_are_named(
    not_finite, tmp_path, clients
):
    tv = clients.pop("tv")
    late = rows_of({**clients, "divergence": -np.arange(20.0)}, 65)
    for client in (3, 11):
        late[client]["divergence"] = not_finite
    group = only(audit([write_run(tmp_path / "run", tv, [*rows_of(clients), *late])]))
    expected = stats.pearsonr(clients["divergence"], tv).statistic
    assert group.runs[0].correlations["estimate-tv"].r == pytest.approx(expected)
    assert group.runs[0].read_at == 60
    note = "divergence is that of round 60: in round 65 it is not finite for client 3, 11"
    assert f"seed 42: {note}" in group.cautions


def test_means_that_stand_in_for_estimates_that_are_not_finite_are_named(tmp_path, clients):
    """The last round has every client, but never all of them finite."""
    tv = clients.pop("tv")
    rounds = []
    for number, client in ((60, 7), (65, 3)):
        rows = rows_of({**clients, "divergence": clients["divergence"] + number}, number)
        rows[client]["divergence"] = None
        rounds += rows
    group = only(audit([write_run(tmp_path / "run", tv, rounds)]))
    shift = np.full(20, 62.5)
    shift[[3, 7]] = 60, 65
    expected = stats.pearsonr(clients["divergence"] + shift, tv).statistic
    assert group.runs[0].correlations["estimate-tv"].r == pytest.approx(expected)
    note = "divergence is each client's mean over rounds: in round 65 it is not finite for client 3"
    assert (group.runs[0].read_at, group.runs[0].notes) == (0, (note,))
    assert f"seed 42: {note}" in group.cautions


def test_an_oracle_is_found_and_capacity_noise_is_not(tmp_path):
    """Forty studies of one run each; a true null is called a finding in 2.5 of 100."""
    rng, studies = np.random.default_rng(11), 40
    for study in range(studies):
        capacity, tv = rng.choice(TIERS, 20, p=PROBS), rng.uniform(0.2, 0.8, 20)
        noise = rng.standard_normal((2, 20))
        columns = {
            "capacity": capacity,
            "oracle": tv + 0.1 * noise[0],
            "restated": 2 - capacity + 0.1 * noise[1],
        }
        write_run(tmp_path / str(study), tv, rows_of(columns), lr=0.01 * (study + 1))
    oracle, restated = (audit([tmp_path], column=name).groups for name in ("oracle", "restated"))
    assert len(oracle) == len(restated) == studies
    assert all("oracle carries information about" in group.verdicts[0] for group in oracle)
    by_chance = sum(group.pooled[DECISIVE].sign > 0 for group in restated)
    assert by_chance <= stats.binom.ppf(0.9999, studies, 0.025)
    assert all("restated tracks capacity" in group.verdicts[1] for group in restated)
    false_alarms = sum(group.pooled["estimate-capacity"].sign != 0 for group in oracle)
    assert false_alarms <= stats.binom.ppf(0.9999, studies, 0.05)


def test_seeds_pool_and_methods_do_not(tmp_path, clients):
    tv = clients.pop("tv")
    rows = rows_of(clients)
    for seed in (42, 43, 44):
        write_run(tmp_path / "paper" / f"seed{seed}", tv, rows, seed=seed, device="cuda")
    write_run(tmp_path / "other" / "seed42", tv, rows, has_fl__gamma=0.5)
    write_run(tmp_path / "iid" / "seed42", tv, rows, partition="iid")
    for seed in (42, 43):
        options = {"strategy": "random-budget", "random_budget__match": f"/runs/seed{seed}"}
        write_run(tmp_path / "control" / f"seed{seed}", tv, rows, seed=seed, **options)
    groups = {group.name: group for group in audit([tmp_path]).groups}
    assert {name: len(group.runs) for name, group in groups.items()} == {
        "has-fl on digits, partition=dirichlet": 3,
        "has-fl (gamma=0.5) on digits, partition=dirichlet": 1,
        "has-fl on digits, partition=iid": 1,
        "random-budget on digits, partition=dirichlet": 2,
    }
    paper = groups["has-fl on digits, partition=dirichlet"]
    assert [run.seed for run in paper.runs] == [42, 43, 44]
    assert paper.pooled[DECISIVE].weight == 3 * 16
    assert paper.options == {}


def test_a_copy_of_a_run_counts_once(tmp_path, clients):
    tv = clients.pop("tv")
    write_run(tmp_path / "a", tv, rows_of(clients), summary=None)
    write_run(tmp_path / "b", tv, rows_of(clients))
    (tmp_path / "link").symlink_to(tmp_path / "b")
    group = only(audit([tmp_path, tmp_path / "b", tmp_path / "link"]))
    assert [run.directory for run in group.runs] == [str(tmp_path / "b")]
    assert f"left out, a copy by options and seed: {tmp_path / 'a'}" in group.cautions


def test_linked_folders_are_searched_and_circles_end(tmp_path, clients):
    tv = clients.pop("tv")
    write_run(tmp_path / "elsewhere" / "deep" / "run", tv, rows_of(clients))
    results = tmp_path / "results"
    results.mkdir()
    (results / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "circle").symlink_to(results)
    (results / "config.json.d").mkdir()
    (results / "config.json.d" / "config.json").write_text('{"model_type": "other software"}')
    assert len(only(audit([results])).runs) == 1


@pytest.fixture
def paired(tmp_path, clients):
    """Three seeds of HAS-FL, and a function that adds controls below a folder of their own."""
    tv = clients.pop("tv")
    rows = rows_of(clients)
    for seed, accuracy in ((1, 0.80), (2, 0.84), (3, 0.79)):
        write_run(tmp_path / "runs" / str(seed), tv, rows, (accuracy, 0.52), seed=seed)

    def controls(folder, accuracies, width=0.50, **options):
        for seed, accuracy in accuracies.items():
            directory = tmp_path / folder / str(seed)
            write_run(directory, tv, rows, (accuracy, width), seed=seed, **options)
        return tmp_path / folder

    return tmp_path / "runs", controls


def test_final_accuracy_is_compared_seed_by_seed(paired):
    """Differences 1, 2, 3 points: sd 1, half width 4.303 / sqrt(3)."""
    runs, controls = paired
    accuracies = {3: 0.76, 1: 0.79, 2: 0.82, 9: 0.1}
    there = controls("control", accuracies, strategy="random-budget")
    group = only(audit([runs], control=[there]))
    (comparison,) = group.controls
    assert comparison.seeds == (1, 2, 3)
    assert (comparison.accuracy.mean, comparison.accuracy.sd) == pytest.approx((0.02, 0.01))
    half = 0.01 * 4.302652729749464 / np.sqrt(3)
    assert comparison.accuracy.low == pytest.approx(0.02 - half)
    assert comparison.width_gap == pytest.approx(0.02)
    assert group.verdicts[-1] == (
        "final accuracy cannot be told from that of random-budget: +2.0 points [-0.5, +4.5] over "
        "3 seeds"
    )
    found = audit([runs, there]).groups
    assert [len(each.controls) for each in found] == [1, 0]
    assert found[0].controls == group.controls


def test_a_budget_that_does_not_match_is_said(paired):
    runs, controls = paired
    there = controls("control", {1: 0.60, 2: 0.62, 3: 0.58}, width=0.40, strategy="random-budget")
    verdict = only(audit([runs], control=[there])).verdicts[-1]
    assert verdict.startswith("final accuracy is above that of random-budget: +21.0 points")
    assert verdict.endswith(
        "the budgets do not match (mean width +0.120), so widths alone may explain it"
    )


@pytest.mark.parametrize(
    ("options", "seed", "message"),
    [
        ({"lr": 0.5}, 1, "its lr is 0.5, not 0.1"),
        ({"strategy": "random-budget"}, 7, "no finished run has its seed, 7"),
        ({}, 1, "it is a run of the audited method"),
    ],
)
def test_a_control_without_a_partner_says_why(options, seed, message, paired):
    runs, controls = paired
    there = controls("control", {seed: 0.5}, **options)
    result = audit([runs], control=[there])
    assert only(result).controls == ()
    assert result.cautions == (f"control {there / str(seed)} is left out: {message}",)


def test_one_pair_and_an_unfinished_control_are_no_evidence(paired, clients):
    runs, controls = paired
    there = controls("control", {1: 0.5, 2: 0.5}, strategy="random-budget")
    (there / "2" / "summary.json").unlink()
    result = audit([runs], control=[there])
    assert result.cautions == (f"control {there / '2'} has not finished: left out",)
    assert only(result).verdicts[-1] == (
        "no verdict on final accuracy against random-budget: +30.0 points on 1 seed"
    )


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [
        (5.0, "divergence carries information about data skew beyond capacity: r("),
        (-5.0, "divergence is negative: beyond capacity it falls as data skew rises: r("),
        (0.0, "no evidence that divergence carries information about data skew beyond capacity: "),
    ],
)
def test_the_verdict_needs_the_whole_interval(slope, verdict, tmp_path, clients):
    tv = clients.pop("tv")
    columns = {**clients, "divergence": clients["divergence"] + slope * tv}
    group = only(audit([write_run(tmp_path / "run", tv, rows_of(columns))]))
    assert group.verdicts[0].startswith(verdict)
    assert (group.pooled[DECISIVE].sign == 0) == group.verdicts[0].endswith("that holds 0")
    assert group.cautions == (
        "small sample: 20 clients in 1 run; only a correlation beyond 0.45 in size can be told "
        "from 0",
        "only 1 adaptation round: estimates are still settling",
    )


def test_skew_that_goes_with_capacity_is_a_caution(tmp_path):
    """The oracle of these clients tracks capacity, and nothing is wrong with it."""
    rng = np.random.default_rng(4)
    capacity = np.array(TIERS)[np.arange(20) % 4]
    tv = 0.9 - 0.5 * capacity + 0.1 * rng.standard_normal(20)
    columns = {"capacity": capacity, "divergence": tv, "width": capacity}
    group = only(audit([write_run(tmp_path / "run", tv, rows_of(columns))]))
    assert group.verdicts[1].startswith("divergence tracks capacity: ")
    assert any("capacity and skew go together in these runs" in line for line in group.cautions)


def test_an_unfinished_run_is_read_and_named(tmp_path, clients):
    directory = write_run(tmp_path / "run", clients.pop("tv"), rows_of(clients), summary=None)
    group = only(audit([directory]))
    assert not group.runs[0].finished
    assert "1 of 1 run not finished" in group.cautions


N = 8
VARIED = np.array([0.3, 0.5, 0.1, 0.9, 0.4, 0.8, 0.2, 0.6])
STEPS = np.repeat([0.5, 1.0], N // 2)
FULL = {"capacity": STEPS, "divergence": VARIED, "allocated-width": VARIED**2}
SKEW = VARIED[::-1]
DEGENERATE = {
    "one client": (
        [0.0],
        rows_of({name: values[:1] for name, values in FULL.items()}),
        {DECISIVE: "N = 1, where an interval takes 5", "tv-capacity": "N = 1, where an interval"},
    ),
    "constant widths": (
        SKEW,
        rows_of({**FULL, "allocated-width": np.ones(N)}),
        {"width-tv-given-capacity": "width is constant"},
    ),
    "widths at capacity": (
        SKEW,
        rows_of({**FULL, "allocated-width": STEPS}),
        {
            "width-tv-given-capacity": "capacity determines width",
            "width-tv-within-tiers": "in no tier of 4 or more do both width and TV vary",
        },
    ),
    "constant capacity": (
        SKEW,
        rows_of({**FULL, "capacity": np.ones(N)}),
        {
            "estimate-capacity": "capacity is constant",
            DECISIVE: "capacity is constant",
            "tv-capacity": "capacity is constant",
        },
    ),
    "constant estimate": (
        SKEW,
        rows_of({**FULL, "divergence": np.ones(N)}),
        {"estimate-tv": "divergence is constant", DECISIVE: "divergence is constant"},
    ),
    "no such column": (
        SKEW,
        rows_of({"capacity": STEPS, "width": VARIED, "mine": VARIED}),
        {
            "estimate-tv": "no numeric column 'divergence' in clients.jsonl; there are: capacity, "
            "mine, width"
        },
    ),
    "no rows": (
        SKEW,
        [],
        {
            "estimate-tv": "no numeric column 'divergence' in clients.jsonl; there are: none",
            "width-tv-given-capacity": "no numeric column 'width' in clients.jsonl",
            "tv-capacity": "no numeric column 'capacity' in clients.jsonl",
        },
    ),
    "estimates that are no numbers": (
        SKEW,
        [{**row, "divergence": "much"} for row in rows_of(FULL)],
        {"estimate-tv": "no numeric column 'divergence'"},
    ),
    "estimates that are not finite": (
        SKEW,
        [{**row, "divergence": float("nan")} for row in rows_of(FULL)],
        {"estimate-tv": "no numeric column 'divergence'"},
    ),
    "no label distances": ([], rows_of(FULL), {DECISIVE: "partition.json holds no total-variatio"}),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_a_degenerate_run_says_which_correlation_is_undefined(case, tmp_path):
    tv, rows, reasons = DEGENERATE[case]
    group = only(audit([write_run(tmp_path / "run", tv, rows)]))
    assert set(group.pooled) == set(LABELS)
    for key, reason in reasons.items():
        assert group.runs[0].correlations[key].reason.startswith(reason)
        assert np.isnan(group.pooled[key].r)
    if DECISIVE in reasons:
        assert group.verdicts[0].startswith("no verdict: r(divergence, TV | capacity) is undefined")


def test_with_constant_capacity_the_verdict_shows_the_plain_correlation(tmp_path):
    tv, rows, _ = DEGENERATE["constant capacity"]
    group = only(audit([write_run(tmp_path / "run", tv, rows)]))
    r = stats.pearsonr(VARIED, SKEW).statistic
    assert f"(with nothing held fixed, r(divergence, TV) = {r:.2f} [" in group.verdicts[0]


def test_what_is_no_run_is_refused(tmp_path, clients):
    with pytest.raises(FedhetError, match=r"holds no config\.json, nor does a folder below it"):
        audit([tmp_path])
    with pytest.raises(FedhetError, match="no run to read"):
        audit([tmp_path / "nowhere"])
    directory = write_run(tmp_path / "run", clients.pop("tv"), rows_of(clients))
    with pytest.raises(FedhetError, match="no run to read"):
        audit([directory], control=[tmp_path / "nowhere"])
    (directory / "clients.jsonl").write_text("{broken\n")
    with pytest.raises(FedhetError, match=r"clients\.jsonl.*cannot be read"):
        audit([directory])
    (directory / "clients.jsonl").unlink()
    (directory / "partition.json").write_text("{")
    with pytest.raises(FedhetError, match=r"partition\.json.*cannot be read"):
        audit([directory])
    for content in ("{}", "[]", "3", '{"config": 3}'):
        (directory / "config.json").write_text(content)
        with pytest.raises(FedhetError, match=r"its config\.json is not that of a run"):
            audit([directory])


def test_a_real_run_is_audited(tmp_path):
    """Two thirds of six clients a round, so that the last round is not one of all."""
    options = {"has_fl__warmup": 0, "has_fl__adapt_every": 1, "has_fl__normalise_every": 1}
    reader = run(tmp_path / "run", strategy="has-fl", fraction_train=0.67, **options)
    group = only(audit([reader.directory]))
    last = [row for row in reader.clients if row["round"] == 3]
    tv = json.loads((reader.directory / "partition.json").read_text())["total-variation"]
    expected = np.corrcoef([row["divergence"] for row in last], tv)[0, 1]
    assert group.runs[0].correlations["estimate-tv"].r == pytest.approx(expected)
    assert (group.runs[0].adaptations, group.runs[0].clients, group.runs[0].read_at) == (3, 6, 3)


def test_the_command_shows_tables_and_verdicts_and_writes_json(fedhet, paired, tmp_path):
    runs, controls = paired
    there = controls("control", {1: 0.79, 2: 0.82, 3: 0.76}, strategy="random-budget")
    file = tmp_path / "audit.json"
    status, out, _ = fedhet("audit", runs, "--control", there, "--json", file)
    assert status == 0
    group = only(audit([runs], control=[there]))
    for correlation in group.pooled.values():
        assert f"{correlation.r:.2f} [{correlation.low:.2f}, {correlation.high:.2f}]" in out
    for text in (*LABELS.values(), "seed 2", "pooled over 3 runs"):
        assert text in out
    for verdict in group.verdicts:
        assert f"verdict: {verdict}\n" in out
    content = json.loads(file.read_text())
    (written,) = content["groups"]
    assert content["column"] == "divergence"
    assert written["pooled"][DECISIVE]["r"] == group.pooled[DECISIVE].r
    assert [each["seed"] for each in written["runs"]] == [1, 2, 3]
    assert written["controls"][0]["accuracy"]["mean"] == pytest.approx(0.02)


def test_the_command_says_what_is_undefined_and_writes_null(fedhet, tmp_path):
    tv, rows, _ = DEGENERATE["constant estimate"]
    write_run(tmp_path / "run", tv, rows)
    file = tmp_path / "audit.json"
    status, out, _ = fedhet("audit", tmp_path / "run", "--json", file)
    assert status == 0
    assert "undefined (seed 42): r(estimate, TV), r(estimate, capacity), " in out
    assert json.loads(file.read_text())["groups"][0]["pooled"]["estimate-tv"]["r"] is None
    status, out, _ = fedhet("audit", tmp_path / "run", "--column", "allocated-width")
    assert "r(allocated-width, TV | capacity) = " in out


def test_the_commands_mistakes_are_one_line(fedhet, tmp_path, clients):
    status, _, err = fedhet("audit", tmp_path / "none")
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("error: run directory = ")
    directory = write_run(tmp_path / "run", clients.pop("tv"), rows_of(clients))
    status, _, err = fedhet("audit", directory, "--json", tmp_path / "no" / "audit.json")
    assert (status, err.count("\n")) == (2, 1)
    assert "--json = " in err
    why = "cannot be written (No such file or directory)"
    assert f"{why}; make room, or name a file in a folder that is there" in err


def test_a_column_that_no_run_has_is_refused(fedhet, tmp_path, clients):
    """One run with it is enough: the others say themselves that theirs is undefined."""
    tv = clients.pop("tv")
    has = write_run(tmp_path / "has-fl", tv, rows_of(clients))
    plain = {"capacity": clients["capacity"], "width": clients["capacity"]}
    lacks = write_run(tmp_path / "fedavg", tv, rows_of(plain), strategy="fedavg")
    check_column(audit([has, lacks]))
    with pytest.raises(FedhetError, match=r"^--column = 'divergence': .*: capacity, width$"):
        check_column(audit([lacks]))
    message = "no run has a finite number there in clients.jsonl; name a column that has: "
    status, out, err = fedhet("audit", tmp_path, "--column", "nosuch", "--json", tmp_path / "x")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert (
        f"--column = 'nosuch': {message}allocated-width, capacity, divergence, examples, width"
        in err
    )
    assert not (tmp_path / "x").exists()


def test_without_a_row_there_is_no_column(tmp_path):
    result = audit([write_run(tmp_path / "run", [0.1, 0.2], [])])
    with pytest.raises(FedhetError, match=r"name a column that has: none$"):
        check_column(result)
