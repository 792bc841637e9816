"""What ``flockstep`` has, and where it comes from; it is loaded when it is first asked for."""

from . import averages, clips, codecs, faults, tails, topologies
from .backends.real.launch.launch import launch
from .backends.sim.cluster.compute import Compute
from .backends.sim.cluster.network import Link, Network
from .backends.sim.simulate import simulate, simulate_seeds
from .budget import Budget
from .elastic import Elastic
from .errors import CodecRange, Deadlock, Diverged, FlockstepError, LostPeer, Mismatch, NodeFailed
from .islands import Place, place
from .joining import join, progress, rank, size
from .message import Message
from .node import Node, Pending
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
    "Choco",
    "Clip",
    "CoCoD",
    "CodecRange",
    "Compute",
    "DataParallel",
    "Deadlock",
    "DiLoCo",
    "Diverged",
    "EagerDiLoCo",
    "Elastic",
    "Episode",
    "EpisodePlus",
    "FlockstepError",
    "GTNSGDm",
    "Gossip",
    "Link",
    "LocalSGD",
    "LostPeer",
    "Message",
    "Mismatch",
    "Network",
    "NoLoCo",
    "Node",
    "NodeFailed",
    "NodeReport",
    "OverlapLocalSGD",
    "Pending",
    "Place",
    "Row",
    "SClipEF",
    "SClipEFNetwork",
    "Strategy",
    "StreamingDiLoCo",
    "Swarm",
    "SwarmPairs",
    "SwarmPull",
    "Trace",
    "Workload",
    "averages",
    "clips",
    "codecs",
    "faults",
    "join",
    "launch",
    "place",
    "progress",
    "rank",
    "simulate",
    "simulate_seeds",
    "size",
    "tails",
    "topologies",
    "train",
]
