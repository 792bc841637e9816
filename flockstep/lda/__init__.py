"""Topic models (latent Dirichlet allocation) by stochastic variational inference, with scikit-learn's face."""

try:
    import sklearn  # noqa: F401
except ImportError as missing:
    raise ImportError('topic models need scikit-learn: pip install "flockstep[lda]"') from missing

from flockstep.lda.estimator import LDA
from flockstep.lda.export import show_topics, to_gensim, write_topics
from flockstep.lda.model_files import load, save
from flockstep.lda.nodes.dpsvi import DPSVI
from flockstep.lda.nodes.fit_nodes import fit_on_nodes
from flockstep.lda.nodes.topic_workload import TopicDocuments
from flockstep.lda.page.page import write_page

__all__ = [
    "DPSVI",
    "LDA",
    "TopicDocuments",
    "fit_on_nodes",
    "load",
    "save",
    "show_topics",
    "to_gensim",
    "write_page",
    "write_topics",
]
