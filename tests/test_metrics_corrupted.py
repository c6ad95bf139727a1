"""The mean corruption error against loops; tables with holes are refused."""

import pytest

from killick.corruptions.suites import SUITES
from killick.errors import DataError
from killick.metrics import mce, relative_mce

ALL_COMMON, BENCHMARK = SUITES["c"], SUITES["c15"]


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
    for pair in ((cells, table()), (table(), cells)):
        with pytest.raises(DataError, match=r"fog at severity 4\."):
            mce(*pair)


def test_a_perfect_baseline_is_refused():
    baseline = {cell: 0.0 for cell in table()}
    with pytest.raises(DataError, match=r"no errors on gaussian_noise"):
        mce(table(), baseline)
