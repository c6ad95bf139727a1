"""Comparisons from Python, under the path that the documentation teaches."""

from killick.experiments.arms import Arm as Arm
from killick.experiments.arms import parse_arm as parse_arm
from killick.experiments.experiment import ComparisonResult as ComparisonResult
from killick.experiments.experiment import compare as compare
