"""Thresholds with a guarantee: how early a model may stop, told by items of which the loss is known."""

from regard_lab.calibration.learn_then_test import Calibrated, bonferroni, calibrate, fixed_sequence
from regard_lab.calibration.p_values import binomial, hoeffding_bentkus, items_needed

__all__ = [
    "Calibrated",
    "binomial",
    "bonferroni",
    "calibrate",
    "fixed_sequence",
    "hoeffding_bentkus",
    "items_needed",
]
