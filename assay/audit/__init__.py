"""Audits: does a loss, an estimator, a whole trainer do what it claims, by exact enumeration?"""

from assay.audit.loss_report import LossReport as LossReport
from assay.audit.losses import loss as loss
