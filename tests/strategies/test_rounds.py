"""``node.rounds``: the steps of a run, a period at a time."""

import pytest
import torch

import flockstep as fs
from flockstep.node import Node


class Counted:
    """As much of a node as rounds need: some steps are behind it, and some are left."""

    def __init__(self, behind, left):
        self.step_count, self.total, self.asked_at_the_end = behind, behind + left, 0

    def steps(self):
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.step_count >= self.total:
            self.asked_at_the_end += 1
            raise StopAsyncIteration
        self.step_count += 1
        return self.step_count - 1


def rounds_of(node, period, *, at_most=None):
    """What a program sees: of every round its number, whether it was resumed, and its steps."""
    seen = []

    async def program():
        async for round in Node.rounds(node, period):
            seen.append((round.number, round.is_resumed, []))
            async for k in round:
                assert node.step_count == k + 1
                seen[-1][2].append(k)
                if len(seen[-1][2]) == at_most:
                    break

    with pytest.raises(StopIteration):
        program().send(None)
    return seen


@pytest.mark.parametrize("period", [1, 2, 3, 7])
@pytest.mark.parametrize("left", [0, 1, 2, 6, 7, 13])
@pytest.mark.parametrize("behind", [0, 1, 3, 6, 7, 9])
def test_every_step_is_in_its_round_and_what_was_open_is_closed(behind, left, period):
    node = Counted(behind, left)
    seen = rounds_of(node, period)
    assert [k for _, _, ks in seen for k in ks] == list(range(behind, behind + left))
    assert all(k // period == number for number, _, ks in seen for k in ks)
    # Today's programs close a round at its last step, and one that the end of the run leaves open.
    closes = [k // period for k in range(behind, behind + left) if (k + 1) % period == 0]
    closes += [(behind + left) // period] if (behind + left) % period else []
    assert [number for number, _, _ in seen] == closes
    assert [is_resumed for _, is_resumed, _ in seen] == [i == 0 and behind % period > 0 for i in range(len(seen))]
    # A user's loop ends once: who asks it again is told that this was a mistake.
    assert node.asked_at_the_end <= 1


def test_a_round_that_is_left_early_goes_on():
    seen = rounds_of(Counted(0, 7), 3, at_most=2)
    assert seen == [(0, False, [0, 1]), (0, True, [2]), (1, False, [3, 4]), (1, True, [5]), (2, False, [6])]


def test_a_period_is_a_whole_number():
    with pytest.raises(ValueError, match=r"node.rounds.period must be at least 1, got 0"):
        rounds_of(Counted(0, 1), 0)


@pytest.mark.parametrize("stop", [4, 5, 8])
# The second once averaged zeros then: who had been drawn for the round was not known without a step of it.
@pytest.mark.parametrize("strategy", [fs.LocalSGD(period=4), fs.EpisodePlus(period=4)], ids=repr)
def test_a_loop_that_was_over_in_the_middle_of_a_round_ends_once_more_as_it_did(strategy, stop, tmp_path):
    """Models are the same at the end; a run that only begins and ends again has nothing to change."""

    def loop():
        torch.manual_seed(fs.rank())
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with fs.join(model, optimizer, strategy, resume=tmp_path, save_every=1) as node:
            while node.step_count < stop:
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
            node.save(tmp_path)
        return model.weight.detach().clone()

    first, second = fs.simulate(loop, nodes=2).results, fs.simulate(loop, nodes=2).results
    for weight in (first[1], second[0], second[1]):
        assert torch.equal(first[0], weight)
