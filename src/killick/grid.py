"""Comparisons from Python, under the path that the documentation teaches."""

from killick.experiments.arms import Arm as Arm
from killick.experiments.arms import parse_arm as parse_arm
from killick.experiments.experiment import Compared as Compared
from killick.experiments.experiment import compare as compare
