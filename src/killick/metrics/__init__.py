"""Metrics: functions of whole sets of tensors, without state, and the registry of them.

They work where the tensors are, CPU or GPU, and sum in float64. Higher scores are more out of
distribution throughout; a confidence is the probability of the predicted class. Metrics of
`(confidence, correct)` also take `(probs, labels)`: probabilities `(n, classes)`, class numbers `(n,)`.
`killick.metrics.metric_registry` shows how to add a metric.

In: logits, labels, scores. Out: numbers. Imports `errors`, `registry` and `corruptions`.
"""

from killick.metrics.accuracy import brier as brier
from killick.metrics.accuracy import hits as hits
from killick.metrics.accuracy import nll as nll
from killick.metrics.accuracy import nll_per_image as nll_per_image
from killick.metrics.accuracy import squared_error as squared_error
from killick.metrics.accuracy import top_k as top_k
from killick.metrics.binned_calibration import Reliability as Reliability
from killick.metrics.binned_calibration import ece as ece
from killick.metrics.binned_calibration import reliability as reliability
from killick.metrics.binned_calibration import rms_ece as rms_ece
from killick.metrics.conformal import conformal_quantile as conformal_quantile
from killick.metrics.conformal import conformal_scores as conformal_scores
from killick.metrics.corruption_summary import mce as mce
from killick.metrics.corruption_summary import relative_mce as relative_mce
from killick.metrics.detection import Roc as Roc
from killick.metrics.detection import aupr as aupr
from killick.metrics.detection import auroc as auroc
from killick.metrics.detection import fpr_at_tpr_in as fpr_at_tpr_in
from killick.metrics.detection import fpr_at_tpr_out as fpr_at_tpr_out
from killick.metrics.detection import roc as roc
from killick.metrics.detection import threshold as threshold
from killick.metrics.metric_registry import METRICS as METRICS
from killick.metrics.metric_registry import SCORES as SCORES
from killick.metrics.metric_registry import Metric as Metric
from killick.metrics.metric_registry import OODScore as OODScore
from killick.metrics.metric_registry import register_metric as register_metric
from killick.metrics.metric_registry import register_score as register_score
from killick.metrics.ood_scores import energy as energy
from killick.metrics.ood_scores import entropy as entropy
from killick.metrics.ood_scores import max_logit as max_logit
from killick.metrics.ood_scores import max_softmax as max_softmax
from killick.metrics.selective import RiskCoverage as RiskCoverage
from killick.metrics.selective import aurc as aurc
from killick.metrics.selective import e_aurc as e_aurc
from killick.metrics.selective import risk_coverage as risk_coverage
from killick.metrics.smooth_calibration import SmoothReliability as SmoothReliability
from killick.metrics.smooth_calibration import smooth_ece as smooth_ece
from killick.metrics.smooth_calibration import smooth_ece_interval as smooth_ece_interval
from killick.metrics.smooth_calibration import smooth_reliability as smooth_reliability
from killick.metrics.temperature import fit_temperature as fit_temperature
