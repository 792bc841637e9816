"""HSA2C: advantage actor-critic whose threads share one policy without a lock.

    R_t = sum_{i<n} gamma^i r_{t+i} + gamma^n V(s_{t+n});   A = R - V
    loss = mean[ -log pi(a|s) A + c_v (R - V)^2 - c_e entropy ]

Mohamad, Alamri, Bouchachia: scaling up stochastic gradient descent, Machine Learning 2022, arXiv 2210.02882. Only the
abstract was at hand; network and settings are those that actor-critics are known by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy, deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flockstep import check
from flockstep.rl import storage
from flockstep.rl.assembly import copies_of, engine_for, environments, is_atari, is_compiled, policy_for
from flockstep.rl.engine import Engine, Tally
from flockstep.rl.environments.copies import Environments, needed, source_of
from flockstep.rl.policies.mlp import MlpPolicy
from flockstep.rl.policies.networks import POLICIES
from flockstep.rl.policies.policy_options import as_json
from flockstep.rl.rates import Rate, from_json, to_json
from flockstep.rl.reporting.evaluation import Evaluation, evaluate
from flockstep.rl.reporting.history import History, Row
from flockstep.rl.reporting.progress import Watching
from flockstep.rl.reporting.tensorboard import TensorBoard, run_folder
from flockstep.rl.settings import Settings

Callback = Callable[[Row], bool | None]
"""Called with every row of the history; False ends the training. If it has a method ``begin``, that gets the model."""


class HSA2C:
    """Advantage actor-critic whose threads share one policy without a lock, used as the A2C of stable-baselines3 is.

        R_t = sum_{i<n} gamma^i r_{t+i} + gamma^n V(s_{t+n});   A = R - V
        loss = mean[ -log pi(a|s) A + vf_coef (R - V)^2 - ent_coef entropy ]

    With one thread, one seed has one outcome. On a GPU the threads take turns, and their games share the cores.

    Mohamad, Alamri, Bouchachia: scaling up stochastic gradient descent, Machine Learning 2022, arXiv 2210.02882. Only
    the abstract was at hand; network and settings are those that actor-critics are known by.

    Args:
        policy: "MlpPolicy", "CnnPolicy" or "A3CPolicy" (for images), or a torch module of your own that gives
            ``(logits, value)`` for a batch of observations; for real-valued actions it gives means and has a parameter
            ``log_std``.
        env: A gymnasium id, a function that makes an environment or a vector of them, or one that gymnasium made.
        learning_rate: A number falls to 0 linearly over one call of ``learn``; see ``Constant`` and ``Linear``.
        n_steps: Environment steps of each copy in one update; n above.
        gamma: Discount of later rewards, from 0 to 1 per environment step.
        ent_coef: Weight of the entropy. None: 0.01 for "CnnPolicy" and "A3CPolicy", else 0.
        vf_coef: Weight of the squared error of values.
        gae_lambda: How much of a return is rewards that came, beside values that were expected, from 0 to 1; 1: all.
        normalize_advantage: Whether the advantages of an update are brought to mean 0 and deviation 1.
        normalize_observations: Whether observations are normalized by what all threads have met. For "MlpPolicy" with
            tanh.
        normalize_rewards: Whether rewards are, too. For "MlpPolicy" with tanh.
        max_grad_norm: Largest Euclidean norm of an update's gradient; what is longer is scaled down.
        rms_prop_eps: What RMSprop adds to the mean of squared gradients, inside the root.
        threads: Lock-free workers that share one policy.
        envs_per_thread: Copies of the environment that each thread steps. None: 8, or as many as a vector of them has.
        period: Updates of a thread between two reports, each a row of the history. None: 100 for ``MlpPolicy``, else
            10.
        envpool: Whether envpool steps the environment, whose id ``env`` is then.
        policy_kwargs: ``net_arch``, ``shared``, ``activation_fn``, ``ortho_init``, ``log_std_init`` of a policy by
            name.
        tensorboard_log: Folder for TensorBoard's curves. None: none are written.
        verbose: 1 prints lines as training goes; 0 prints none.
        seed: Seed of weights, actions and episodes. None: another every time.
        device: Where the policy lies; "cpu" for a compiled one, which ``MlpPolicy`` with tanh is.

    Example:
        model = HSA2C("MlpPolicy", "CartPole-v1", threads=2).learn(500_000)
        print(model.evaluate(episodes=100))
    """

    def __init__(
        self,
        policy: str | nn.Module,
        env: Any,
        *,
        learning_rate: Rate = 7e-4,
        n_steps: int = 5,
        gamma: float = 0.99,
        ent_coef: float | None = None,
        vf_coef: float = 0.5,
        gae_lambda: float = 1.0,
        normalize_advantage: bool = False,
        normalize_observations: bool = False,
        normalize_rewards: bool = False,
        max_grad_norm: float = 0.5,
        rms_prop_eps: float = 1e-5,
        threads: int = 1,
        envs_per_thread: int | None = None,
        period: int | None = None,
        envpool: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
        tensorboard_log: str | Path | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._images = images = policy != "MlpPolicy" and not isinstance(policy, MlpPolicy)
        self.settings = Settings(
            threads=threads,
            envs_per_thread=Settings.envs_per_thread if envs_per_thread is None else envs_per_thread,
            period=(10 if images else 100) if period is None else period,
            n_steps=n_steps,
            gamma=gamma,
            learning_rate=learning_rate,
            ent_coef=(0.01 if isinstance(policy, str) and images else 0.0) if ent_coef is None else ent_coef,
            vf_coef=vf_coef,
            gae_lambda=gae_lambda,
            normalize_advantage=normalize_advantage,
            max_grad_norm=max_grad_norm,
            rms_eps=rms_prop_eps,
        )
        self.tensorboard_log = tensorboard_log
        self.board: TensorBoard | None = None
        """Where curves go, while ``learn`` runs and they are asked for."""
        self.verbose = check.whole(self, "verbose", verbose, at_least=0)
        self.seed = check.whole(self, "seed", seed, at_least=0) if seed is not None else _any_seed()
        self._own = isinstance(policy, nn.Module)
        self._name = policy if isinstance(policy, str) else type(policy).__name__
        self._options = as_json(policy_kwargs)
        self.source, self._envpool = source_of(env), envpool
        self._copy = environments(self.source, None, envpool=envpool, images=images)
        self.settings = replace(self.settings, envs_per_thread=copies_of(self._copy, envs_per_thread))
        self.observations, self.actions = self._copy.observations, self._copy.actions
        self._normalize = {
            "normalize_observations": normalize_observations,
            "normalize_rewards": normalize_rewards,
        }
        begun = policy_for(policy, self.observations, self.actions, self._options, self.seed, **self._normalize)
        if is_compiled(begun, self.actions) and torch.device(device).type != "cpu":
            raise ValueError(f"HSA2C.device must be cpu for MlpPolicy, which is compiled for it, got {device!r}")
        self.policy = begun.to(device)
        self.num_timesteps = 0
        self._history = History()
        self._engine: Engine | None = None
        self._kept: Mapping[str, Any] = {}

    @property
    def history(self) -> list[Row]:
        """How training went: steps, seconds, mean return of the last 100 episodes, steps/s, entropy, losses."""
        return self._history.rows

    @property
    def observation_space(self) -> Any:
        """What the environment shows, as gymnasium has it."""
        return self._copy.spaces[0]

    @property
    def action_space(self) -> Any:
        """What can be done in it, as gymnasium has it."""
        return self._copy.spaces[1]

    @property
    def plays_atari(self) -> bool:
        """Whether it plays games as rl/environments/atari.py has them."""
        return is_atari(self.source, images=self._images)

    def get_env(self) -> Any:
        """What copies of the environment are made from: an id, a function or a specification."""
        return self.source

    def set_env(self, env: Any) -> None:
        """Train and play elsewhere from now on, where the same is seen and can be done."""
        source = source_of(env)
        other = self._one_of(source)
        copies_of(other, self.settings.envs_per_thread)
        # What training needs to go on is the engine's, and outlives it.
        self._kept = self._ready().state()
        self.close()
        self.source, self._copy = source, other

    @property
    def reward_threshold(self) -> float | None:
        """The mean return from which gymnasium counts the environment as solved, where it says so."""
        if not isinstance(self.source, str):
            return None
        known = needed("gymnasium").registry.get(self.source)
        return None if known is None else known.reward_threshold

    def learn(
        self,
        total_timesteps: int,
        callback: Callback | Sequence[Callback] | None = None,
        *,
        log_interval: int | None = None,
        tb_log_name: str = "HSA2C",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for so many environment steps of all threads together.

        A learning rate that is a number falls to 0 over them. ``reset_num_timesteps=False`` goes on counting where the
        last call (or the saved model) was. Of several callbacks each sees every row, and each may end it. Ctrl-C leaves
        the policy as it is then, ready to be saved.

        ``log_interval`` counts updates of all threads together: the first row after so many is a line, where
        ``verbose`` is 1, and a point for TensorBoard, in ``tensorboard_log/tb_log_name_1`` and so on. Rows come every
        ``period`` updates of a thread, or every second. Without it there are ten lines, and each row is a point.
        """
        check.whole(self, "total_timesteps", total_timesteps)
        every = None
        if log_interval is not None:
            every = check.whole(self, "log_interval", log_interval) * self.settings.steps_per_update
        callbacks = callback if isinstance(callback, Sequence) else [] if callback is None else [callback]
        for each in callbacks:
            if not callable(each):
                raise TypeError(f"HSA2C.callback must be a function of a row of the history, got {each!r}")
        if reset_num_timesteps:
            self.num_timesteps, self._history = 0, History()
        since = self.num_timesteps
        until = since + total_timesteps
        engine = self._ready()
        with ExitStack() as stack:
            if self.tensorboard_log is not None:
                folder = run_folder(self.tensorboard_log, tb_log_name, go_on=since > 0)
                self.board = stack.enter_context(TensorBoard(folder, every=every, since=since))
                stack.callback(setattr, self, "board", None)
            for each in callbacks:
                if hasattr(each, "begin"):
                    each.begin(self)
            self.start_history()
            watching = stack.enter_context(
                Watching(self._name, since, until, bar=progress_bar, lines=self.verbose > 0, every=every)
            )
            wanted = True

            def tell(tally: Tally) -> bool:
                nonlocal wanted
                self.num_timesteps = tally.timesteps
                row = self._history.add(tally)
                watching.show(row)
                if self.board is not None:
                    self.board(row)
                # Whoever ended it has had their last row, though other threads have something left to report.
                answers = [call(row) for call in callbacks] if wanted else []
                wanted = wanted and all(answer is not False for answer in answers)
                return wanted

            self.num_timesteps = engine.train(since=since, until=until, tell=tell)
        return self

    def start_history(self) -> History:
        """Where rows of a training go that begins now."""
        self._history.begin(self.num_timesteps)
        return self._history

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], None]:
        """The action for one observation, or the actions for several; the second result is there for others' sake.

        ``state`` and ``episode_start`` mean something to recurrent policies only, which there are none of.
        """
        actions = self._decide(self.observations.encode(observation), deterministic=deterministic)
        return (actions[0] if self.observations.is_single(observation) else actions), None

    def evaluate(
        self, episodes: int = 100, *, deterministic: bool = True, seed: int | None = None, env: Any = None
    ) -> Evaluation:
        """Play whole episodes in an environment of its own, as gymnasium (or envpool) has it; or in another one."""
        check.whole(self, "episodes", episodes)

        def drawn(rows: NDArray[Any]) -> NDArray[Any]:
            return self._ready().predict(rows, deterministic=deterministic)

        if env is None:
            return evaluate(self._copy, drawn, episodes, seed)
        other = self._one_of(source_of(env))
        try:
            return evaluate(other, drawn, episodes, seed)
        finally:
            other.close()

    def snapshot(self) -> HSA2C:
        """The model as it is at this moment, for callbacks: while they look, other threads may train on.

        It needs no closing; its environment is the model's.
        """
        still = copy(self)
        still.policy, still._engine, still._kept = deepcopy(self.policy), None, self._ready().state()
        still._history = History.from_json(self._history.to_json())
        return still

    def save(self, path: str | Path) -> Path:
        """Write everything that prediction and further training need; ``best`` becomes ``best.safetensors``.

        But for a learning rate that is a function: ``load`` asks for it.
        """
        engine = self._ready()
        numbers = {**asdict(self.settings), "learning_rate": to_json(self.settings.learning_rate)}
        numbers["rms_prop_eps"] = numbers.pop("rms_eps")
        numbers.pop("rms_decay")
        about = {
            "policy": self._name,
            "own": self._own,
            "policy_kwargs": self._options,
            "env": self.source if isinstance(self.source, str) else None,
            "settings": {**numbers, **self._normalize, "envpool": self._envpool, "seed": self.seed},
            "num_timesteps": self.num_timesteps,
            "history": self._history.to_json(),
        }
        return storage.write(path, about, self.policy.state_dict(), engine.state())

    @classmethod
    def load(cls, path: str | Path, env: Any = None, *, policy: nn.Module | None = None, **changed: Any) -> HSA2C:
        """What ``save`` wrote; ``changed`` are arguments that shall be others now, such as ``threads``.

        An environment that was made by a function, a policy of your own, and a learning rate that is a function must be
        given again.
        """
        saved = storage.read(path)
        about = saved.about
        env = about["env"] if env is None else env
        if env is None:
            raise ValueError(f"HSA2C.env must be given again: {path} was trained on one that a function made")
        # A module of one of those classes, but made by the user, may be another than its name makes.
        known = about["policy"] in POLICIES and not about.get("own", False)
        if policy is None and not known:
            raise ValueError(f"HSA2C.policy must be given again: {path} holds a module of your own, {about['policy']}")
        arguments = {**about["settings"], "policy_kwargs": about["policy_kwargs"], **changed}
        if arguments["learning_rate"] is None:
            raise ValueError(
                f"HSA2C.learning_rate must be given again: {path} was trained with a function, which no file can hold\n"
                "  Constant(7e-4) or Linear(7e-4, 1e-4, steps=10_000_000) from flockstep.rl are kept"
            )
        arguments["learning_rate"] = from_json(arguments["learning_rate"])
        model = cls(about["policy"] if policy is None else policy, env, **arguments)
        try:
            model.policy.load_state_dict(saved.policy)
        except RuntimeError as error:
            what = f"observations of shape {model.observations.shape} and {model.actions.size} actions"
            raise ValueError(f"HSA2C.env has {what}, for which the policy in {path} is not made: {error}") from None
        model.num_timesteps, model._history = about["num_timesteps"], History.from_json(about["history"])
        model._kept = saved.engine
        return model

    def close(self) -> None:
        """End environments, threads and processes."""
        self._copy.close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _ready(self) -> Engine:
        """The engine, made when it is first needed: a loaded model may have been trained for a while."""
        if self._engine is None:
            self._engine = engine_for(
                self.policy,
                self.source,
                self.actions,
                self.settings,
                envpool=self._envpool,
                seed=self.seed,
                begin_at=self.num_timesteps,
            )
            if self._kept:
                self._engine.restore(self._kept)
        return self._engine

    def _one_of(self, source: Any) -> Environments:
        """A copy of another environment, if the policy is made for it."""
        other = environments(source, None, envpool=self._envpool, images=self._images)
        if (other.observations, other.actions) != (self.observations, self.actions):
            other.close()
            raise ValueError(
                f"HSA2C.env must show {self.observation_space} and take {self.action_space}, as before, "
                f"got {other.spaces[0]} and {other.spaces[1]}"
            )
        return other

    def _decide(self, rows: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        return self.actions.decode(self._ready().predict(rows, deterministic=deterministic))


def _any_seed() -> int:
    return int(np.random.default_rng().integers(2**31))
