"""A node's script: trains until its standard input ends, and says how it goes, a line of JSON per step."""

import json
import os
import sys
import threading
import time

import torch
from pulling import Pull

import flockstep as fs


def set_clock(seconds):
    """As if this machine's were so far ahead."""
    real = time.time_ns
    time.time_ns = lambda: real() + seconds * 10**9


def main():
    set_clock(int(os.environ.get("CLOCK_AHEAD", "0")))
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    torch.set_num_threads(1)
    torch.manual_seed(100 + fs.rank())
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    with fs.join(model, optimizer, Pull(period=1)) as node:
        say = {"rank": node.rank, "address": node.address, "begins": model.weight.flatten().tolist()}
        # A pace that leaves the machine room for the other nodes.
        while not over.wait(0.01):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            say |= {"step": node.step_count, "peers": node.peers(), "loss": loss.item()}
            print(json.dumps(say), flush=True)
        average = node.average_model()
        last = {"rank": node.rank, "average": average.weight.flatten().tolist(), "counts": node.report().counts}
    print(json.dumps(last), flush=True)


if __name__ == "__main__":
    main()
