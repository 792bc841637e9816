"""Latent Dirichlet allocation with scikit-learn's face."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from scipy.special import psi
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from flockstep.lda.core.draws import are_drawn
from flockstep.lda.core.learner import Rules
from flockstep.lda.core.passes import Asked, Looks, Patience, Standstill, run_passes
from flockstep.lda.core.priors import begins_after, first_prior, first_word_prior
from flockstep.lda.core.seeds import plant
from flockstep.lda.core.topics import Topics
from flockstep.lda.core.training import Schedule, Trainer, WholeTrainer, fitting_batch, usable_batch
from flockstep.lda.data.corpora import Corpus, Supply
from flockstep.lda.data.streams import Blocks, Stream
from flockstep.lda.evaluate.completion import Completion
from flockstep.lda.evaluate.measure import bound_perplexity, likelihood_bound, mixtures
from flockstep.lda.progress import Watch, compile_loops
from flockstep.lda.settings import CONSTRAINTS, check_counts, check_kind, doubt_sizes, doubt_topics, found_best

_BOUND_SAMPLE = 10_000


class LDA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Topic models by stochastic variational inference, on one thread or on several that share the topics unlocked.

        lambda <- (1 - rho_t) lambda + rho_t (eta + (D / |S|) * expected counts of batch S)           D documents in all
        rho_t = (t^2 / (t + learning_delay) + learning_offset)^-learning_decay                        t = 1, 2, ...

    It takes what ``sklearn.decomposition.LatentDirichletAllocation`` takes (documents by words, sparse or dense), and
    the streams of ``flockstep.lda.data.streams``, for corpora larger than memory.

    Hoffman, Blei, Wang, Paisley: stochastic variational inference, JMLR 2013. "cvb0": Foulds, Boyles, DuBois, Smyth,
    Welling, KDD 2013.

    Args:
        n_components: Number of topics.
        objective: "cvb0" (foresees best), "map" (fastest) or "vb" (variational Bayes, for scikit-learn's numbers).
        doc_topic_prior: A number, one for each topic, or "auto" (learned for each). None: "auto", for "vb" 1 / topics.
        topic_word_prior: A number, or "auto" (one number, learned). None: 1 / topics.
        learning_method: "online", or "batch": one update a pass, from all documents, which are in memory then.
        batch_size: Documents per update; fewer where the threads' batches would be over a quarter of the corpus. None:
            1,024; in ``fit`` for "cvb0" on one thread 256 to 1,024, as many as have 200 words for every topic.
        learning_decay: Power by which the rate of updates falls, 0 to 1. None: 0.5 for "vb", 0.6 for the others.
        learning_offset: Updates by which that fall begins later, 1 or more. None: 10 for "vb", 1 for the others.
        learning_delay: Updates by which t comes to be late; the first ones count more then. Good with several nodes.
        max_iter: Passes over the corpus in ``fit``; a stream that can be read once gets one.
        warm_start: Whether ``fit`` goes on from what was learned before, for ``max_iter`` more passes.
        seed_words: For the first topics, words that they are to be about: a list for each, of columns, or of names
            where documents come in a data frame. Learning begins with them; it may move on. None: none.
        total_samples: Documents that all ``partial_fit`` calls together will see, or a stream that does not know its
            length.
        mean_change_tol: A document's topics are known when their mean change is below; a tenth of it outside training.
        max_doc_update_iter: Rounds per document at most, in training. None: 100 for "vb", 5 for "map", 12 for "cvb0".
        evaluate_every: Passes between two looks at ``eval_docs`` or else at (some of) the training documents; 0 and
            less: none. None: a look at ``eval_docs`` after each pass, where there are any.
        perp_tol: Where ``evaluate_every`` is given, end when the perplexities of two looks differ by less.
        patience: Looks in a row that gained less than ``tolerance`` after which training ends. None: it does not.
        tolerance: Share of the best perplexity so far that a look has to gain.
        n_jobs: Threads; None: 1, -1: all cores. With 1, results are reproducible; with more, they share topics without
            a lock.
        random_state: Seed, or a NumPy ``RandomState``. None: NumPy's global one.
        verbose: 1 shows a bar; 0 does not.

    Attributes:
        components_: Topics by words, pseudo-counts with the prior; ``components_ / components_.sum(1)[:, None]`` are
            distributions. Made when asked for.
        exp_dirichlet_component_: exp(E[log beta]), of the topics as Dirichlet distributions.
        topics_: The table behind it, by word.
        bound_: Perplexity of (at most 10,000 of) the training documents by the variational bound; nan if stopped early.
        eval_scores_: One entry per look: documents, seconds, perplexity.
        training_seconds_: Seconds of learning alone: no compiling, no looks, no ``bound_``.
        n_iter_: Passes made; ``n_batch_iter_`` is one more than the updates made, ``batch_size_`` what was used of the
            batch size.
        doc_topic_prior_: What is used of the prior, or was learned; so is ``topic_word_prior_``.

    Example:
        model = LDA(n_components=20, n_jobs=2).fit(counts)
        mixtures = model.transform(counts)
    """

    _parameter_constraints = CONSTRAINTS
    n_iter_: int
    n_batch_iter_: int

    def __init__(
        self,
        n_components: int = 10,
        *,
        objective: str = "cvb0",
        doc_topic_prior: float | ArrayLike | str | None = None,
        topic_word_prior: float | str | None = None,
        learning_method: str = "online",
        batch_size: int | None = None,
        learning_decay: float | None = None,
        learning_offset: float | None = None,
        learning_delay: float = 0.0,
        max_iter: int = 10,
        warm_start: bool = False,
        seed_words: Sequence[Sequence[int | str]] | None = None,
        total_samples: float = 1e6,
        mean_change_tol: float = 1e-2,
        max_doc_update_iter: int | None = None,
        evaluate_every: int | None = None,
        perp_tol: float = 0.1,
        patience: int | None = None,
        tolerance: float = 1e-3,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.objective = objective
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.learning_method = learning_method
        self.batch_size = batch_size
        self.learning_decay = learning_decay
        self.learning_offset = learning_offset
        self.learning_delay = learning_delay
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.seed_words = seed_words
        self.total_samples = total_samples
        self.mean_change_tol = mean_change_tol
        self.max_doc_update_iter = max_doc_update_iter
        self.evaluate_every = evaluate_every
        self.perp_tol = perp_tol
        self.patience = patience
        self.tolerance = tolerance
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        eval_docs: Any = None,
        eval_docs_every: int | None = None,
        stop: Asked | None = None,
    ) -> LDA:
        """Learn from documents by words or a stream.

        ``eval_docs`` are looked at after every pass, or every so many documents; ``stop`` can end it, before any batch.
        """
        again = self.warm_start and hasattr(self, "topics_")
        if again:
            self._check_unchanged()
        source = self._source(X, "fit", reset=not again)
        whole = self.learning_method == "batch"
        if whole and source.in_pieces:
            raise ValueError('LDA.learning_method="batch" needs all documents in memory; a stream is learned "online"')
        if not again:
            self._begin(source.n_features)
        held_out = self._held_out(eval_docs)
        looks = self._looks(held_out, eval_docs_every, source)
        usable = usable_batch(self._batch(source), threads=self._threads, documents=source.n_documents)
        self.batch_size_ = max(1, int(source.n_documents)) if whole else usable
        passes = self.max_iter if source.again else min(1, self.max_iter)
        kind = WholeTrainer if whole else Trainer
        trainer = self._trainer(begins_after(source.n_documents, passes * source.n_documents), kind)
        with Watch(shown=bool(self.verbose), documents=source.n_documents * passes) as watch:
            each = (source.batches(self.batch_size_, self._rng) for _ in range(passes))
            outcome = run_passes(trainer, each, of=source.n_documents, looks=looks, watch=watch, stop=stop)
        self.n_iter_, self.training_seconds_ = self.n_iter_ + outcome.passes, outcome.seconds
        self.eval_scores_ = [asdict(score) for score in outcome.scores]
        self.n_batch_iter_ = trainer.schedule.done + 1
        head = source.sample(_BOUND_SAMPLE, self._rng)
        self.bound_ = np.nan if outcome.stopped else self._perplexity(head, ratio=source.n_documents / len(head))
        words = head.counts.sum(dtype=np.float64)
        doubt_sizes(topics=self.n_components, documents=source.n_documents, words=words)
        if self.n_iter_ and words:
            doubt_topics(self.topics_, self._prior.alpha, held_out or head)
        return self

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None) -> LDA:
        """Learn from some more documents of ``total_samples``, in the order given."""
        first = not hasattr(self, "topics_")
        if not first:
            self._check_unchanged()
        source = self._source(X, "partial_fit", reset=first)
        if first:
            self._begin(source.n_features)
        self.batch_size_ = usable_batch(self.batch_size, threads=self._threads, documents=self.total_samples)
        trainer = self._trainer(begins_after(self.total_samples, self.total_samples))
        trainer.run(source.batches(self.batch_size_, self._rng, shuffle=False), of=self.total_samples)
        self.n_batch_iter_ = trainer.schedule.done + 1
        return self

    def transform(self, X: Any, *, normalize: bool = True) -> NDArray[Any]:
        """The topics of documents: one row each, summing to one."""
        check_is_fitted(self)
        X = self._counts(X, "transform", reset=False)
        gamma = mixtures(self.topics_, Corpus.of(X), self._rules(), threads=self._threads).astype(X.dtype)
        if normalize:
            gamma /= gamma.sum(axis=1, keepdims=True)
        return np.asarray(gamma)

    def fit_transform(self, X: Any, y: Any = None, *, normalize: bool = True, **how: Any) -> NDArray[Any]:
        """Fit, with whatever else ``fit`` takes, then transform the same documents."""
        return np.asarray(self.fit(X, y, **how).transform(X, normalize=normalize))

    def score(self, X: Any, y: Any = None) -> float:
        """The variational bound on the log-likelihood of documents."""
        check_is_fitted(self)
        corpus = Corpus.of(self._counts(X, "score", reset=False))
        return likelihood_bound(self.topics_, corpus, self._rules(), threads=self._threads)

    def perplexity(self, X: Any, sub_sampling: bool = False) -> float:
        """exp(-bound per word), lower is better; ``sub_sampling``: these stand for ``total_samples`` documents."""
        check_is_fitted(self)
        corpus = Corpus.of(self._counts(X, "perplexity", reset=False))
        return self._perplexity(corpus, ratio=self.total_samples / len(corpus) if sub_sampling else 1.0)

    @property
    def components_(self) -> NDArray[Any]:
        """Topics by words: pseudo-counts, prior included. In float64 if documents came so; learned in float32."""
        if "topics_" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'components_' before it is fitted")
        return np.asarray(self.topics_.table().T, getattr(self, "dtype_", "float32"))

    @components_.setter
    def components_(self, value: ArrayLike) -> None:
        given = np.asarray(value, np.float32)
        if given.ndim != 2 or not (given > 0).all():
            raise ValueError("LDA.components_ must be a table of positive numbers, topics by words")
        if "_prior" not in vars(self) or self._prior.alpha.size != len(given):
            self._set_priors()
        prior = self.topic_word_prior_
        rows = np.ascontiguousarray(given.T) - np.float32(prior)
        self.topics_ = Topics(rows, prior=prior, objective=self.objective)
        self.n_features_in_ = given.shape[1]

    @property
    def exp_dirichlet_component_(self) -> NDArray[Any]:
        """exp(E[log beta]) of topics by words."""
        components = self.components_
        as_given = components.astype(np.float64)
        return np.asarray(np.exp(psi(as_given) - psi(as_given.sum(axis=1, keepdims=True))), components.dtype)

    @property
    def doc_topic_prior_(self) -> float | NDArray[np.float32]:
        """One number, or one for each topic."""
        return self._prior.as_given()

    @property
    def topic_word_prior_(self) -> float:
        """One number."""
        return self.topics_.prior if "topics_" in vars(self) else self._word_prior.first

    def _perplexity(self, corpus: Corpus, *, ratio: float) -> float:
        return bound_perplexity(self.topics_, corpus, self._rules(), threads=self._threads, ratio=ratio)

    def _check_unchanged(self) -> None:
        for name, now, then in (
            ("n_components", self.n_components, self.topics_.n_topics),
            ("objective", self.objective, self.topics_.objective),
        ):
            if now != then:
                raise ValueError(
                    f"LDA.{name} was {then!r} when learning began, and is {now!r} now\n"
                    "  fit anew, or partial_fit a clone of this model"
                )

    def _counts(self, X: Any, whom: str, *, reset: bool) -> Any:
        check_kind(X, whom)
        asked = getattr(X, "dtype", None)
        X = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])
        check_non_negative(X, f"LDA.{whom}")
        check_counts(X, whom)
        if reset:
            self.dtype_ = "float64" if asked == np.float64 else "float32"
        return X

    def _source(self, X: Any, whom: str, *, reset: bool) -> Supply:
        stream = X if isinstance(X, Stream) else Blocks(X) if isinstance(X, Iterator) else None
        if stream is None:
            X = self._counts(X, whom, reset=reset)
            corpus = Corpus.of(X)
            return Supply(read=lambda: iter([corpus]), n_features=X.shape[1], n_documents=X.shape[0])
        if reset:
            self.n_features_in_, self.dtype_ = stream.n_features, "float32"
        return Supply(
            read=lambda: (Corpus.of(self._counts(block, whom, reset=False)) for block in stream),
            n_features=stream.n_features,
            n_documents=stream.n_documents or self.total_samples,
            again=stream.again,
            in_pieces=True,
        )

    def _looks(self, held_out: Completion | None, documents: int | None, source: Supply) -> Looks:
        every = self.evaluate_every
        if (every is None and held_out is None) or (every is not None and every <= 0):
            return Looks(score=None)
        patience = Patience(self.patience, self.tolerance)
        standstill = Standstill(-1.0 if every is None else self.perp_tol)

        def over(perplexity: float) -> bool:
            # Both are told of every look.
            ends = patience.over(perplexity), standstill.over(perplexity)
            return any(ends)

        def score(trainer: Trainer) -> float:
            if held_out is not None:
                return held_out.of_topics(trainer.topics, trainer.alpha)
            head = source.sample(_BOUND_SAMPLE, np.random.default_rng(0))
            return self._perplexity(head, ratio=source.n_documents / len(head))

        return Looks(score=score, documents=documents, passes=every or 1, over=over)

    def _held_out(self, eval_docs: Any) -> Completion | None:
        if eval_docs is None or isinstance(eval_docs, Completion):
            return eval_docs
        return Completion(self._counts(eval_docs, "fit", reset=False))

    def _batch(self, source: Supply) -> int | None:
        if self.batch_size is not None or self.objective != "cvb0" or self._threads > 1 or source.in_pieces:
            return self.batch_size
        (all_of_them,) = source.read()
        length = all_of_them.length
        drawn = are_drawn(length, documents=source.n_documents, vocabulary=source.n_features)
        return fitting_batch(self.n_components, length, drawn=drawn)

    def _begin(self, n_features: int) -> None:
        self._set_priors()
        self.n_iter_, self.n_batch_iter_ = 0, 1
        self.random_state_ = check_random_state(self.random_state)
        self._rng: np.random.Generator = np.random.default_rng(self.random_state_.randint(2**31, size=4))
        compile_loops(shown=bool(self.verbose))
        self.topics_ = Topics.noisy(
            n_features, self.n_components, prior=self._word_prior.first, objective=self.objective, rng=self._rng
        )
        if self.seed_words:
            plant(self.topics_, self.seed_words, getattr(self, "feature_names_in_", None))

    def _set_priors(self) -> None:
        self._prior = first_prior(self.doc_topic_prior, self.n_components, objective=self.objective)
        self._word_prior = first_word_prior(self.topic_word_prior, self.n_components)

    @property
    def _threads(self) -> int:
        return int(effective_n_jobs(self.n_jobs))

    def _rules(self) -> Rules:
        """Outside training a document is looked at longer."""
        return Rules(alpha=self._prior.alpha, tolerance=self.mean_change_tol / 10, negligible=1e-3)

    def _trainer(self, after: float, kind: type[Trainer] = Trainer) -> Trainer:
        given = self.learning_decay, self.learning_offset, self.max_doc_update_iter
        decay, offset, rounds = found_best(self.objective, *given)
        schedule = Schedule(decay=decay, offset=offset, delay=self.learning_delay, done=self.n_batch_iter_ - 1)
        rules = Rules(alpha=self._prior.alpha, rounds=rounds, tolerance=self.mean_change_tol, prior_after=after)
        return kind(
            self.topics_, rules, schedule, threads=self._threads, prior=self._prior, word_prior=self._word_prior
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float32", "float64"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components
