"""Means over corruptions and severities against loops; tables with holes are refused."""

import pytest

from killick.errors import DataError
from killick.metrics import ALL_COMMON, BENCHMARK, by_severity, mce, mean_over, relative_mce


def table(names: tuple[str, ...] = ALL_COMMON, power: float = 1.0) -> dict[tuple[str, int], float]:
    """Numbers that differ in every cell."""
    return {
        (name, severity): (0.01 * (i + 1) + 0.1 * severity) ** power
        for i, name in enumerate(names)
        for severity in range(1, 6)
    }


def test_there_are_nineteen_and_fifteen_of_them():
    assert len(ALL_COMMON) == 19
    assert len(BENCHMARK) == 15
    assert set(ALL_COMMON) - set(BENCHMARK) == {
        *("speckle_noise", "gaussian_blur", "spatter", "saturate")
    }


@pytest.mark.parametrize("names", [None, BENCHMARK, ("fog", "snow")])
def test_means_are_those_of_loops(names):
    cells = table()
    chosen = names or ALL_COMMON
    expected = {}
    for severity in range(1, 6):
        column = [value for (name, s), value in cells.items() if s == severity and name in chosen]
        assert len(column) == len(chosen)
        expected[severity] = sum(column) / len(column)
    assert by_severity(cells, names) == pytest.approx(expected, abs=1e-14)
    assert list(by_severity(cells, names)) == [1, 2, 3, 4, 5]
    mean = sum(expected.values()) / 5
    assert mean_over(cells, names) == pytest.approx(mean, abs=1e-14)
    some = (expected[3] + expected[5]) / 2
    assert mean_over(cells, names, severities=(3, 5)) == pytest.approx(some, abs=1e-14)


def test_the_mean_corruption_error_divides_sums_over_severities():
    errors, baseline = table(), table(power=0.5)
    ratios = []
    for name in BENCHMARK:
        own = sum(errors[name, s] for s in range(1, 6))
        ratios.append(own / sum(baseline[name, s] for s in range(1, 6)))
    assert mce(errors, baseline) == pytest.approx(sum(ratios) / 15, abs=1e-14)
    assert mce(errors, baseline, ["fog"]) == pytest.approx(ratios[BENCHMARK.index("fog")])
    assert mce(errors, errors) == pytest.approx(1.0)


def test_the_relative_one_does_so_with_what_is_added_to_the_clean_error():
    errors, baseline = table(), table(power=0.5)
    ratios = []
    for name in BENCHMARK:
        own = sum(errors[name, s] - 0.05 for s in range(1, 6))
        ratios.append(own / sum(baseline[name, s] - 0.2 for s in range(1, 6)))
    found = relative_mce(errors, 0.05, baseline, 0.2)
    assert found == pytest.approx(sum(ratios) / 15, abs=1e-14)


def test_the_first_hole_is_named():
    cells = table()
    del cells["fog", 4], cells["saturate", 2]
    text = r"in the table, found none for 'fog' at severity 4\. Measure it, or leave the corruption"
    with pytest.raises(DataError, match=text):
        by_severity(cells)
    with pytest.raises(DataError, match=text):
        mean_over(cells)
    with pytest.raises(DataError, match=r"in errors, found none for 'fog' at severity 4\."):
        mce(cells, table())
    with pytest.raises(DataError, match=r"in baseline_errors, found none for 'fog' at severity 4"):
        mce(table(), cells)
    assert mean_over(cells, ["snow"]) == pytest.approx(mean_over(table(), ["snow"]))


def test_names_that_are_not_there_are_refused():
    with pytest.raises(DataError, match=r"found none for 'fig' at severity 1\."):
        mean_over(table(), ["snow", "fig"])
    with pytest.raises(DataError, match=r"at least one corruption to average over, found none\."):
        by_severity({})
    with pytest.raises(DataError, match=r"at least one corruption to average over, found none\."):
        mean_over(table(), [])


def test_a_perfect_baseline_is_refused():
    baseline = {cell: 0.0 for cell in table()}
    with pytest.raises(DataError, match=r"a baseline that errs more on gaussian_noise"):
        mce(table(), baseline)
