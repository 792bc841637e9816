"""What ``flockstep`` has, and where it comes from; it is loaded when it is first asked for."""

from .backends.real.launch.launch import launch
from .backends.sim.cluster.compute import Compute
from .backends.sim.cluster.faults import Crash, Loss, Partition, Pause, Slowdown
from .backends.sim.cluster.network import Link, Network
from .backends.sim.simulate import simulate, simulate_seeds
from .budget import Budget
from .errors import CodecRange, Deadlock, Diverged, FlockstepError, LostPeer, Mismatch, NodeFailed
from .joining import join, progress, rank, size
from .message import Message
from .node import Node, Pending
from .parts.averages import Coded, Exact, Mixed
from .parts.clips import ClipCoordinates, ClipNorm, ClipStep, NoClip, SmoothClip
from .parts.codecs import Cast, Codec, Modular, Raw, Stochastic, TopK
from .parts.feedback import Compensated, Feedback
from .parts.powersgd import PowerSGD
from .parts.topologies import Complete, Edges, Exponential, Hypercube, Random, Ring, Star, Topology, Torus
from .strategies.adpsgd import ADPSGD
from .strategies.choco import Choco
from .strategies.cocod import CoCoD, OverlapLocalSGD
from .strategies.dataparallel import DataParallel
from .strategies.diloco import DiLoCo, EagerDiLoCo
from .strategies.dpsgd import DPSGD
from .strategies.episode import Episode, EpisodePlus
from .strategies.gossip import Gossip
from .strategies.gtnsgd import GTNSGDm
from .strategies.hpsgd import HPSGD
from .strategies.localsgd import CELGC, CELGCUpdate, LocalSGD
from .strategies.noloco import NoLoCo
from .strategies.sclip import SClipEF, SClipEFNetwork
from .strategies.sgp import SGP
from .strategies.streaming import StreamingDiLoCo
from .strategies.swarm import Swarm, SwarmPairs, SwarmPull
from .strategy import Average, Clip, Strategy
from .tails import TailIndex, gradient_samples, tail_index
from .trace import NodeReport, Row, Trace
from .training import train
from .workloads.workload import Workload

__version__: str

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
