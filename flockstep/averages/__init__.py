"""Averages: every node's vector in, (nearly) their mean out; exact, in few bits, over a graph, or in low rank."""

from flockstep.averages.averages import Exact, Mixed
from flockstep.averages.coded import Coded
from flockstep.averages.feedback import Compensated, Feedback
from flockstep.averages.powersgd import PowerSGD

__all__ = ["Coded", "Compensated", "Exact", "Feedback", "Mixed", "PowerSGD"]
