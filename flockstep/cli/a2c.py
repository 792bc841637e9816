"""``flockstep a2c``: an actor-critic on a gymnasium environment, with everything one wants to see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from typer import Argument, Option

from flockstep import check
from flockstep.cli.support import consoles, options
from flockstep.cli.support.stopping import Stop

if TYPE_CHECKING:
    from flockstep.rl import HSA2C, Row

HELP = """Train an actor-critic (HSA2C) on a gymnasium environment.

Threads share one policy without a lock. Classic control environments are
compiled and take some hundred thousand steps a second on each core; others
are stepped by Python, where more threads help little. The first run on a
machine compiles for a while, once.

Shows the mean return of the last 100 episodes as it goes; ends with an
evaluation, a picture of the learning curve, rows as CSV, and the policy in
a file that can be trained further or loaded with HSA2C.load. Ctrl-C ends the
training early and does all of that too.

\b
[bold]Examples[/bold]
  flockstep a2c CartPole-v1 --threads 2
  flockstep a2c Acrobot-v1 --steps 300000 --gif acrobot.gif
  flockstep a2c LunarLander-v3 --steps 2000000 --lr 8e-4 --gamma 0.995

\b
Go on with a policy, to a million steps more:
  flockstep a2c CartPole-v1 --resume flockstep-out/CartPole-v1.safetensors \\
    --steps 1000000

\b
On two processes that exchange changes through a server, two threads each:
  flockstep a2c CartPole-v1 --nodes 2 --threads 2

\b
Watch it in TensorBoard:
  flockstep a2c CartPole-v1 --tensorboard runs
"""

Env = Annotated[str, Argument(metavar="ENV", help="A gymnasium id, such as CartPole-v1.")]
Policy = Annotated[str, Option(help="MlpPolicy for rows of numbers; CnnPolicy or A3CPolicy for images.")]
Steps = Annotated[int, Option(help="Environment steps of all threads together.")]
Threads = Annotated[int, Option(help="Cores that train; with one, a seed has one outcome.")]
Nodes = Annotated[int, Option(help="Processes that train, each with so many threads, under DPSGD; node 0 serves.")]
Envs = Annotated[int, Option(help="Environments of each thread.")]
Rate = Annotated[float, Option(help="The learning rate, which falls to 0 over the training.")]
Gamma = Annotated[float, Option(help="The discount of rewards to come.")]
NSteps = Annotated[int, Option(help="Steps of a roll-out.")]
Entropy = Annotated[
    float | None, Option(help="The entropy's weight. [default: 0, for images 0.01]", show_default=False)
]
Envpool = Annotated[bool, Option("--envpool", help="Step environments by envpool.")]
Seed = Annotated[int, Option(help="For the first weights, episodes and actions.")]
Save = Annotated[Path | None, Option(help="Where the policy goes. [default: OUT/ENV.safetensors]", show_default=False)]
Resume = Annotated[Path | None, Option(help="A saved policy to go on with; its own settings hold.")]
Board = Annotated[Path | None, Option("--tensorboard", help="Folder for TensorBoard.")]
Gif = Annotated[Path | None, Option(help="Write an episode as a GIF.")]
Episodes = Annotated[int, Option(help="Episodes of the evaluation at the end.")]


def a2c(
    env: Env,
    policy: Policy = "MlpPolicy",
    steps: Steps = 500_000,
    threads: Threads = 1,
    nodes: Nodes = 1,
    envs: Envs = 8,
    lr: Rate = 7e-4,
    gamma: Gamma = 0.99,
    n_steps: NSteps = 5,
    entropy: Entropy = None,
    envpool: Envpool = False,
    seed: Seed = 0,
    save: Save = None,
    resume: Resume = None,
    tensorboard: Board = None,
    gif: Gif = None,
    episodes: Episodes = 100,
    out: options.Out = options.OUT,
    debug: options.Debug = False,
) -> None:
    """Train, evaluate, draw and save."""
    with consoles.plain_errors(debug=debug), _missing_packages(debug):
        from flockstep.rl import HSA2C

        torch.set_num_threads(1)
        check.whole("a2c", "steps", steps)
        check.whole("a2c", "episodes", episodes)
        check.whole("a2c", "nodes", nodes)
        if resume is not None:
            model = HSA2C.load(resume, env, threads=threads)
        else:
            model = HSA2C(
                policy,
                env,
                learning_rate=lr,
                n_steps=n_steps,
                gamma=gamma,
                ent_coef=entropy,
                threads=threads,
                envs_per_thread=envs,
                envpool=envpool,
                seed=seed,
            )
        name = env.replace("/", "-")
        # Made before the work, so that a folder that cannot be written costs no one their results.
        out.mkdir(parents=True, exist_ok=True)
        target = save or out / f"{name}.safetensors"
        stopped = _train(model, steps, tensorboard) if nodes == 1 else _train_on_nodes(model, steps, nodes, tensorboard)
        path = model.save(target)
        _tell(model, env, out / name, path, gif, 0 if stopped else episodes)
        model.close()
    if stopped:
        raise typer.Exit(consoles.INTERRUPTED)


def _train(model: HSA2C, steps: int, tensorboard: Path | None) -> bool:
    """Train with a bar; tells whether Ctrl-C ended it."""
    with ExitStack() as stack:
        write = _board(stack, tensorboard)
        stop = stack.enter_context(Stop())

        def callback(row: Row) -> bool:
            write(row)
            return not stop.asked

        model.learn(steps, callback, reset_num_timesteps=False, progress_bar=True)
    return stop.asked


def _train_on_nodes(model: HSA2C, steps: int, nodes: int, tensorboard: Path | None) -> bool:
    """The same on several processes."""
    from flockstep.rl.nodes.learn_nodes import learn_on_nodes
    from flockstep.rl.reporting.progress import Watching

    since = model.num_timesteps
    with ExitStack() as stack:
        write = _board(stack, tensorboard)
        watching = stack.enter_context(Watching(f"{nodes} nodes", since, since + steps, bar=True, lines=False))
        stop = stack.enter_context(Stop())

        def callback(row: Row) -> None:
            write(row)
            watching.show(row)

        learn_on_nodes(model, steps, nodes=nodes, callback=callback, stop=lambda: stop.asked)
    return stop.asked


def _board(stack: ExitStack, folder: Path | None) -> Callable[[Row], None]:
    if folder is None:
        return lambda row: None
    from flockstep.rl.reporting.tensorboard import TensorBoard

    return stack.enter_context(TensorBoard(folder))


def _tell(model: HSA2C, env: str, name: Path, saved: Path, film: Path | None, episodes: int) -> None:
    from flockstep.rl.reporting import curves

    console, last = consoles.results(), model.history[-1]
    threshold = model.reward_threshold
    solved = "" if threshold is None else f"; it counts as solved from {threshold:g} on"
    console.print(
        f"{env}: {model.num_timesteps:,} steps in {last.seconds:.1f} s of training, "
        f"{last.steps_per_second:,.0f} a second; mean return at the end {last.mean_return:.1f}",
        markup=False,
        soft_wrap=True,
    )
    if episodes:
        line = f"Evaluation: {model.evaluate(episodes, seed=model.seed)}, each with its likeliest actions{solved}"
        console.print(line, markup=False, soft_wrap=True)
    paths = {
        "Picture": curves.picture(model.history, name.with_name(f"{name.name}.png"), f"HSA2C on {env}", threshold),
        "Rows": curves.table(model.history, name.with_name(f"{name.name}.csv")),
        "Policy": saved,
    }
    if film is not None:
        from flockstep.rl.reporting.film import gif

        paths["Episode"] = gif(model, film, seed=model.seed)
    for what, path in paths.items():
        console.print(f"{what + ':':9}{path}", markup=False, soft_wrap=True)


@contextmanager
def _missing_packages(debug: bool) -> Iterator[None]:
    """A missing package is told with the line to type."""
    try:
        yield
    except ImportError as error:
        if debug:
            raise
        consoles.complain(str(error))
        raise typer.Exit(consoles.FAILED) from None
