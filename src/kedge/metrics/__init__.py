"""Numbers that say how good predictions are: functions of whole sets of tensors, without state.

They work where the tensors are, CPU or GPU, and sum in float64. Higher scores are more out of
distribution throughout; a confidence is the probability of the predicted class.
"""

from kedge.metrics.accuracy import brier as brier
from kedge.metrics.accuracy import hits as hits
from kedge.metrics.accuracy import nll as nll
from kedge.metrics.accuracy import squared_error as squared_error
from kedge.metrics.accuracy import surprise as surprise
from kedge.metrics.accuracy import top_k as top_k
from kedge.metrics.bins import Reliability as Reliability
from kedge.metrics.bins import ece as ece
from kedge.metrics.bins import reliability as reliability
from kedge.metrics.bins import rms_ece as rms_ece
from kedge.metrics.corrupted import ALL_COMMON as ALL_COMMON
from kedge.metrics.corrupted import BENCHMARK as BENCHMARK
from kedge.metrics.corrupted import by_severity as by_severity
from kedge.metrics.corrupted import mce as mce
from kedge.metrics.corrupted import mean_over as mean_over
from kedge.metrics.corrupted import relative_mce as relative_mce
from kedge.metrics.detection import Roc as Roc
from kedge.metrics.detection import aupr as aupr
from kedge.metrics.detection import auroc as auroc
from kedge.metrics.detection import fpr_at_tpr_in as fpr_at_tpr_in
from kedge.metrics.detection import fpr_at_tpr_out as fpr_at_tpr_out
from kedge.metrics.detection import roc as roc
from kedge.metrics.detection import threshold as threshold
from kedge.metrics.scores import energy as energy
from kedge.metrics.scores import entropy as entropy
from kedge.metrics.scores import max_logit as max_logit
from kedge.metrics.scores import max_softmax as max_softmax
from kedge.metrics.selective import RiskCoverage as RiskCoverage
from kedge.metrics.selective import aurc as aurc
from kedge.metrics.selective import e_aurc as e_aurc
from kedge.metrics.selective import risk_coverage as risk_coverage
from kedge.metrics.smooth import SmoothReliability as SmoothReliability
from kedge.metrics.smooth import smooth_ece as smooth_ece
from kedge.metrics.smooth import smooth_ece_interval as smooth_ece_interval
from kedge.metrics.smooth import smooth_reliability as smooth_reliability
from kedge.metrics.temperature import fit_temperature as fit_temperature
