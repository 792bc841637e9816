"""Train in a flock, not in lockstep."""

from flockstep.backends.real.launch import launch
from flockstep.backends.sim.compute import Compute
from flockstep.backends.sim.faults import Crash, Loss, Partition, Pause, Slowdown
from flockstep.backends.sim.network import Link, Network
from flockstep.backends.sim.simulate import simulate, simulate_seeds
from flockstep.budget import Budget
from flockstep.errors import CodecRange, Deadlock, Diverged, FlockstepError, LostPeer, Mismatch, NodeFailed
from flockstep.join import join, progress, rank, size
from flockstep.message import Message
from flockstep.node import Node, Pending
from flockstep.parts.averages import Coded, Exact, Mixed
from flockstep.parts.clips import ClipCoordinates, ClipNorm, ClipStep, NoClip, SmoothClip
from flockstep.parts.codecs import Cast, Codec, Modular, Raw, Stochastic, TopK
from flockstep.parts.feedback import Compensated, Feedback
from flockstep.parts.graphs import Edges, Hypercube
from flockstep.parts.powersgd import PowerSGD
from flockstep.parts.topologies import Complete, Exponential, Random, Ring, Star, Topology, Torus
from flockstep.strategies.adpsgd import ADPSGD
from flockstep.strategies.choco import Choco
from flockstep.strategies.cocod import CoCoD, OverlapLocalSGD
from flockstep.strategies.dataparallel import DataParallel
from flockstep.strategies.diloco import DiLoCo, EagerDiLoCo
from flockstep.strategies.dpsgd import DPSGD
from flockstep.strategies.episode import Episode, EpisodePlus
from flockstep.strategies.gossip import Gossip
from flockstep.strategies.gtnsgd import GTNSGDm
from flockstep.strategies.hpsgd import HPSGD
from flockstep.strategies.localsgd import CELGC, CELGCUpdate, LocalSGD
from flockstep.strategies.noloco import NoLoCo
from flockstep.strategies.sclip import SClipEF, SClipEFNetwork
from flockstep.strategies.sgp import SGP
from flockstep.strategies.streaming import StreamingDiLoCo
from flockstep.strategies.swarm import Swarm, SwarmPairs, SwarmPull
from flockstep.strategy import Average, Clip, Strategy
from flockstep.tails import TailIndex, gradient_samples, tail_index
from flockstep.trace import NodeReport, Row, Trace
from flockstep.train import train
from flockstep.workloads.workload import Workload

__version__ = "0.1.0"

__all__ = [
    "ADPSGD",
    "CELGC",
    "DPSGD",
    "HPSGD",
    "SGP",
    "Average",
    "Budget",
    "CELGCUpdate",
    "Cast",
    "Choco",
    "Clip",
    "ClipCoordinates",
    "ClipNorm",
    "ClipStep",
    "CoCoD",
    "Codec",
    "CodecRange",
    "Coded",
    "Compensated",
    "Complete",
    "Compute",
    "Crash",
    "DataParallel",
    "Deadlock",
    "DiLoCo",
    "Diverged",
    "EagerDiLoCo",
    "Edges",
    "Episode",
    "EpisodePlus",
    "Exact",
    "Exponential",
    "Feedback",
    "FlockstepError",
    "GTNSGDm",
    "Gossip",
    "Hypercube",
    "Link",
    "LocalSGD",
    "Loss",
    "LostPeer",
    "Message",
    "Mismatch",
    "Mixed",
    "Modular",
    "Network",
    "NoClip",
    "NoLoCo",
    "Node",
    "NodeFailed",
    "NodeReport",
    "OverlapLocalSGD",
    "Partition",
    "Pause",
    "Pending",
    "PowerSGD",
    "Random",
    "Raw",
    "Ring",
    "Row",
    "SClipEF",
    "SClipEFNetwork",
    "Slowdown",
    "SmoothClip",
    "Star",
    "Stochastic",
    "Strategy",
    "StreamingDiLoCo",
    "Swarm",
    "SwarmPairs",
    "SwarmPull",
    "TailIndex",
    "TopK",
    "Topology",
    "Torus",
    "Trace",
    "Workload",
    "gradient_samples",
    "join",
    "launch",
    "progress",
    "rank",
    "simulate",
    "simulate_seeds",
    "size",
    "tail_index",
    "train",
]
